"""What the code of jobs really did, told by the jobs themselves (see `sample_tasks`)."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.waiting import wait_until


@dataclass(frozen=True)
class Line:
    """One thing that a job told."""

    job: str
    event: str
    at: float
    pid: int
    mark: str = ""
    how: str = ""

    @property
    def starts(self) -> bool:
        return self.event == "start"


@dataclass(frozen=True)
class Journal:
    """The file, and the files that let jobs go on."""

    folder: Path

    def lines(self, *jobs: str) -> list[Line]:
        """What these jobs told, or all of them, in the order of writing."""
        try:
            text = (self.folder / "journal").read_text(encoding="utf-8")
        except FileNotFoundError:
            return []
        whole = text[: text.rfind("\n") + 1]  # the last line may be on its way
        found = [self._line(json.loads(each)) for each in whole.splitlines()]
        return [each for each in found if not jobs or each.job in jobs]

    def _line(self, told: dict[str, Any]) -> Line:
        return Line(**told)

    def starts(self, *jobs: str) -> list[Line]:
        return [line for line in self.lines(*jobs) if line.starts]

    def ends(self, *jobs: str) -> list[Line]:
        return [line for line in self.lines(*jobs) if line.event == "end"]

    def wait_start(self, job: str, count: int = 1, timeout: float = 20.0) -> Line:
        """The `count`th start of the code."""
        found = wait_until(
            lambda: starts if len(starts := self.starts(job)) >= count else [],
            f"the code of {job} starts for the {count}. time; journal: {self.lines()[-20:]}",
            timeout,
        )
        return found[count - 1]

    def wait_end(self, job: str, timeout: float = 20.0) -> Line:
        """The first end of the code."""
        return wait_until(lambda: self.ends(job), f"the code of {job} ends", timeout)[0]

    def release(self, *names: str) -> None:
        """Let the jobs that hold under these names go on."""
        for name in names:
            (self.folder / f"release-{name}").touch()


def overlap(lines: Iterable[Line]) -> int:
    """The largest number of runs that were in their code at once."""
    most = running = 0
    for line in sorted(lines, key=lambda line: (line.at, line.starts)):  # at one instant, ends come first
        running += 1 if line.starts else -1 if line.event == "end" else 0
        most = max(most, running)
    return most

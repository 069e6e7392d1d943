"""What private servers have in common: found or the test is skipped, started, frozen, crashed and restarted."""

from __future__ import annotations

import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn, Self

import pytest

from tests.support.ports import free_port
from tests.support.processes import Process
from tests.support.waiting import wait_until


def unavailable(reason: str) -> NoReturn:
    """Skips the test; under CI=true nothing may be missing, so there it fails."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


class Server(ABC):
    """A server on 127.0.0.1 with a port and a folder of its own, which it keeps over restarts."""

    name: str
    errors: type[Exception] | tuple[type[Exception], ...]  # what `ready` raises while it is not

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self._process: Process | None = None

    @abstractmethod
    def command(self) -> Sequence[str | Path]:
        """What starts it in the foreground."""

    @abstractmethod
    def ready(self) -> bool:
        """Whether it answers a client."""

    @abstractmethod
    def stop(self) -> None:
        """End it in good order; what it keeps on disk is there after `start`."""

    def launch(self, log: Path) -> Process:
        """One process of this server."""
        return Process(self.command(), log=log, name=self.name)

    @property
    def process(self) -> Process:
        """The process of the server that runs."""
        if self._process is None:
            raise RuntimeError(f"{self.name} was not started")
        return self._process

    def start(self, timeout: float = 60.0) -> None:
        """Start it on its old port and folder; answers when this returns."""
        if self._process is not None and self._process.running:
            raise RuntimeError(f"{self.name} runs already")
        process = self._process = self.launch(self.folder / f"{self.name}.log")

        def answers() -> bool:
            if not process.running:
                raise AssertionError(f"{self.name} did not start\n{process.log_tail()}")
            return self.ready()

        wait_until(answers, f"{self.name} answers on port {self.port}", timeout, ignore=self.errors)

    def kill9(self) -> None:
        """End it as a crash would."""
        self.process.kill9()

    def pause(self) -> None:
        """Freeze it: connections stay open and nothing answers."""
        self.process.stop()

    def resume(self) -> None:
        """Let it go on after `pause`."""
        self.process.cont()

    def restart(self) -> None:
        """Stop and start, with its clients cut off."""
        self.stop()
        self.start()

    def close(self) -> None:
        """End it for good and remove its folder, whatever state it is in."""
        if self._process is not None:
            self._process.end(grace=0)
        shutil.rmtree(self.folder, ignore_errors=True)

    @contextmanager
    def serving(self) -> Generator[Self]:
        """Started at the beginning, closed at the end."""
        try:
            self.start()
            yield self
        finally:
            self.close()

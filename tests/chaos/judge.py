"""The judge: what the records and streams said against what the code of the jobs did. Pure."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from tests.chaos.story import TERMINAL, Story, Told
from tests.chaos.toll import FOREVER, Toll
from tests.support.journal import Line, overlap

RUNNING = 1  # a rank in event ids
SLACK_SECONDS = 0.25  # between the clocks of the database and of the code
CLAIM_SECONDS = 2.0  # between a claim and the first line of the code

LOST = "lost"
FALSE = "false"
TWICE = "run twice"
AFTER = "run after cancel"
OVER = "over the limit"
NEVER = "never ended"
HUNG = "hung streams"
ORDER = "streams that repeated or skipped"
CHANGED = "terminal states that changed"
DOUBLE = "two jobs for one key"
QUESTIONS = (LOST, FALSE, TWICE, AFTER, OVER, NEVER, HUNG, ORDER, CHANGED, DOUBLE)


@dataclass
class Run:
    """One run of a job's code; `end` is when it returned, or when its process was killed."""

    start: Line
    end: Line | None
    ended_at: float
    killed_at: float = FOREVER
    stops: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])  # long ones of its process

    @property
    def frozen_at(self) -> float | None:
        """When its worker began to be silent for so long that its jobs may have been given away meanwhile."""
        return self.silent_at(self.ended_at)

    def silent_at(self, until: float) -> float | None:
        """The same, of the time between its claim and then."""
        claimed = self.start.at - CLAIM_SECONDS
        return min(
            (since for since, end in self.stops if since <= until + SLACK_SECONDS and end >= claimed), default=None
        )

    def lost(self, by: float) -> bool:
        """Whether its process was hurt before the record said that it was."""
        return self.killed_at <= by + SLACK_SECONDS or self.silent_at(by) is not None


@dataclass
class Verdict:
    """How many jobs broke each promise, with some of them to look at."""

    jobs: int = 0
    runs: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    broken: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    def add(self, question: str, what: str, count: int = 1) -> None:
        self.broken[question] += count
        if len(self.examples[question]) < 5:
            self.examples[question].append(what)


def runs_of(lines: Iterable[Line], toll: Toll, timeout: float) -> dict[str, list[Run]]:
    """The runs of each job, in the order of their starts."""
    found: dict[str, list[Run]] = defaultdict(list)
    open_runs: dict[tuple[str, int], Run] = {}
    for line in lines:
        if line.starts:
            death = toll.death_of(line.pid, line.at) or FOREVER
            # from T/2 of silence on, a worker may be taken for dead
            run = Run(line, None, death, death, toll.stops_of(line.pid, timeout / 2))
            found[line.job].append(run)
            open_runs[line.job, line.pid] = run
        elif line.event == "end" and (run := open_runs.pop((line.job, line.pid), None)) is not None:
            run.end, run.ended_at = line, line.at
    return found


def judge(stories: Sequence[Story], lines: Sequence[Line], toll: Toll, timeout: float, limit: int) -> Verdict:
    """Everything that can be said job by job."""
    verdict = Verdict(jobs=len(stories))
    runs = runs_of(lines, toll, timeout)
    verdict.runs = sum(map(len, runs.values()))
    marks: dict[str, set[str]] = defaultdict(set)
    for line in lines:
        marks[line.mark].add(line.job)
    for story in stories:
        if len(story.ids | marks[story.plan.key]) > 1:
            verdict.add(DOUBLE, f"{story.plan.key}: {sorted(story.ids | marks[story.plan.key])}")
        if story.id is not None:
            _job(verdict, story, runs.get(story.id, []))
    most = _overlap(runs)
    if most > limit:
        verdict.add(OVER, f"{most} at once", most - limit)
    return verdict


def _overlap(runs: dict[str, list[Run]]) -> int:
    """A frozen run counts until it froze; what its worker does after that stands beside the limit (section 2)."""
    flat: list[Line] = []
    for run in (run for each in runs.values() for run in each):
        ended = min(run.ended_at, run.frozen_at or FOREVER)
        if ended > run.start.at:
            flat += [run.start, replace(run.start, event="end", at=ended)]
    return overlap(flat)


def _job(verdict: Verdict, story: Story, runs: list[Run]) -> None:
    name = f"{story.id} ({story.plan.task}, {story.plan.then})"
    record = story.final
    _streams(verdict, story, name)
    if len(story.ends) > 1:
        verdict.add(CHANGED, f"{name}: {story.ends}")
    if len(runs) > story.plan.runs or not all(may_follow(story.plan.task, *pair) for pair in itertools.pairwise(runs)):
        verdict.add(TWICE, f"{name}: {runs}")
    if story.deleted:
        verdict.ends["deleted"] += 1
        if record is not None and "started_at" in record:
            verdict.add(FALSE, f"{name}: deleted and still there")
    elif record is None:
        verdict.add(LOST, name)
    elif record["status"] not in TERMINAL:
        verdict.add(NEVER, f"{name}: {record['status']}")
    else:
        verdict.ends[record["status"]] += 1
        if reason := contradiction(story, record, runs):
            verdict.add(FALSE, f"{name}: {reason}; {_short(record)}; runs {runs}")
    if late := _ran_after_cancel(story, record, runs):
        verdict.add(AFTER, f"{name}: {late}")


def may_follow(task: str, earlier: Run, later: Run) -> bool:
    """Whether the code may have started again: it asked for a retry, or it is safe to rerun and was lost."""
    if task == "again":
        return earlier.end is not None and earlier.end.how == "Retry"
    return task == "safe" and earlier.lost(later.start.at)


def contradiction(story: Story, record: dict[str, Any], runs: list[Run]) -> str | None:
    """What the record of an ended job says that its code did not do; None when all is true."""
    last = runs[-1] if runs else None
    how = last.end.how if last and last.end else None
    error = record.get("error") or ""
    finished = seconds(record.get("finished_at"))
    if record["status"] == "completed":
        if how != "return":
            return f"completed, but its code ended by {how}"
        if last and finished and last.ended_at > finished + SLACK_SECONDS:
            return "completed before its code ended"
    elif record["status"] == "failed":
        lost = any(run.lost(finished or FOREVER) for run in runs)
        if "Lost" in error:
            silent = record.get("attempt", FOREVER) > len(runs)  # killed between its claim and its first line
            return None if lost or silent else "lost, but nobody hurt its process"
        if how != "ValueError" or story.plan.task != "fail":
            return f"failed with {error!r}, but its code ended by {how}"
    elif story.canceled_at is None and not ("shut down" in error and any(run.killed_at < FOREVER for run in runs)):
        return "canceled, but nobody asked for it"
    elif last and finished and last.frozen_at is None and last.ended_at > finished + SLACK_SECONDS:
        return "canceled while its code ran"
    return None


def _ran_after_cancel(story: Story, record: dict[str, Any] | None, runs: list[Run]) -> str | None:
    """A start after somebody was told that the job is canceled."""
    told = story.cancel_told
    known = told.at if told and told.status == "canceled" else None
    if record is not None and record["status"] == "canceled":
        known = min(known or FOREVER, (seconds(record.get("finished_at")) or FOREVER) + SLACK_SECONDS)
    late = [run for run in runs if known is not None and run.start.at > known and run.frozen_at is None]
    return f"told at {known}, started {[run.start for run in late]}" if late else None


def _streams(verdict: Verdict, story: Story, name: str) -> None:
    if story.stream == "open" or story.silences:
        verdict.add(HUNG, f"{name}: {story.stream}, {story.silences} silences, {story.events[-3:]}")
    events = [event for event in story.events if event.event_id]
    if any(out_of_order(earlier, later) for earlier, later in itertools.pairwise(events)):
        verdict.add(ORDER, f"{name}: {[(event.event_id, event.status) for event in events]}")


def out_of_order(earlier: Told, later: Told) -> bool:
    """True where an event came again, or one is missing between these two."""
    before, after = position(earlier), position(later)
    if after <= before:
        return True
    # of attempts before the one that runs, statuses may be missing
    return later.status == "completed" and before[:2] != (after[0], RUNNING)


def position(event: Told) -> tuple[int, ...]:
    """The id of an event (attempt, rank, number) in numbers that grow as the job goes on (section 4)."""
    return tuple(int(number) for number in (event.event_id or "0").split("-"))


def seconds(time: str | None) -> float | None:
    """Since the epoch."""
    return datetime.fromisoformat(time).timestamp() if time else None


def _short(record: dict[str, Any]) -> dict[str, Any]:
    shown = ("status", "attempt", "submitted_at", "started_at", "finished_at", "error", "worker")
    return {name: record.get(name) for name in shown}

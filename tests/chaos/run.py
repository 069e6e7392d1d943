"""One storm from its beginning to its verdict."""

from __future__ import annotations

import asyncio
import re
import time
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.client import Clients
from tests.chaos.deployment import LIMIT, Deployment, deployed, log_files
from tests.chaos.faults import Weather
from tests.chaos.judge import DOUBLE, FALSE, LOST, NEVER, Verdict, judge
from tests.chaos.toll import Toll
from tests.support.journal import Journal

DRAIN_SECONDS = 60.0  # what waited behind the last fault, beyond T


@dataclass(frozen=True)
class Storm:
    """How hard it blows."""

    kind: str
    seconds: float
    timeout: float = 6.0
    per_second: float = 8.0
    pause: tuple[float, float] = (0.5, 3.5)
    seed: int = 1
    answer_seconds: float = 8.0  # the contract says 5, and the machine has other things to do


@dataclass
class Outcome:
    """What a storm left."""

    storm: Storm
    verdict: Verdict
    toll: Toll
    clients: dict[str, int]
    late: list[str]
    settled_seconds: float


def blow(storm: Storm, folder: Path) -> Outcome:
    """Deploy, blow, let it settle, and judge."""
    with deployed(storm.kind, folder, storm.timeout) as here:
        return asyncio.run(_blow(storm, here))


async def _blow(storm: Storm, here: Deployment) -> Outcome:
    weather = Weather(here, storm.timeout, storm.seed, storm.pause)

    def stood_still(since: float) -> bool:
        return weather.toll.stood_still((unit.process.pid for unit in here.apis), since)

    clients = Clients(here.urls, storm.seed, keys=here.ours, answer_seconds=storm.answer_seconds, excused=stood_still)
    try:
        await asyncio.to_thread(weather.start)
        try:
            await clients.blow(storm.seconds, storm.per_second)
        finally:
            await asyncio.to_thread(weather.stop)
        calm = time.monotonic()
        # the contract's T, and what the backlog of the last faults needs
        await clients.settle(storm.timeout * 1.1 + DRAIN_SECONDS)
        await _all_ended(clients, calm + storm.timeout * 1.1 + DRAIN_SECONDS)
        settled = time.monotonic() - calm
        lines = Journal(here.folder).lines()
        verdict = judge(clients.stories, lines, weather.toll, storm.timeout, LIMIT)
        if here.ours:
            _the_list(verdict, clients, await asyncio.wait_for(clients.records(), 60))
            _the_logs(verdict, here)
        return Outcome(storm, verdict, weather.toll, dict(clients.faults), clients.examples, settled)
    finally:
        await clients.close()


async def _all_ended(clients: Clients, deadline: float) -> None:
    """Read every record until all have ended or time is up."""
    while True:
        await asyncio.wait_for(clients.read_all(), 120)
        open_jobs = [s for s in clients.stories if s.final and not s.delete_asked and not s.ends]
        if not open_jobs or time.monotonic() > deadline:
            return
        await asyncio.sleep(1.0)


def _the_list(verdict: Verdict, clients: Clients, records: list[dict[str, object]]) -> None:
    """The list knows the same jobs as the clients, each once."""
    listed = {str(record["id"]): record for record in records}
    known = {id for story in clients.stories for id in story.ids}
    if len(listed) != len(records):
        verdict.add(FALSE, "a job stands twice in the list", len(records) - len(listed))
    for job in listed.keys() - known:
        verdict.add(DOUBLE, f"nobody was told of {listed[job]}")
    for story in clients.stories:
        if story.id is None:
            clients.faults["submits without an answer"] += 1
            continue
        record = listed.get(story.id)
        if record is None and not story.deleted:
            verdict.add(LOST, f"{story.plan.key} ({story.id}) is not in the list")
        elif record is not None and story.final and record["status"] != story.final["status"]:
            verdict.add(NEVER, f"the list and the record disagree: {record}, {story.final}")


def _the_logs(verdict: Verdict, here: Deployment) -> None:
    """What no outage excuses: an error that nobody foresaw."""
    for file in log_files(here):
        text = file.read_text(encoding="utf-8", errors="replace")
        for found in re.finditer(
            r"database is locked|Exception in ASGI|was never retrieved|failed and will be tried again", text
        ):
            around = text[max(0, found.start() - 200) : found.end() + 200]
            verdict.add("errors in logs", f"{file.name}: …{around}…")

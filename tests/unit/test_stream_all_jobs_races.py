"""Streams of all jobs beside writers that commit early and late: whatever a client does, it is told every status.

Pages and the log are tiny here, so that streams fall behind, catch up and are cut all the time.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import pytest
from sqlalchemy import Connection

from celery_jobs.api.stream.all_jobs import AllJobs
from celery_jobs.api.stream.follower import Follower
from celery_jobs.api.stream.hub import Hub
from celery_jobs.records import submit
from celery_jobs.records.cancel import cancel, delete_job
from celery_jobs.records.ids import JobId
from celery_jobs.records.migrate import upgrade
from celery_jobs.records.moves import move
from celery_jobs.records.record import JobFilter
from celery_jobs.records.settings import Settings
from celery_jobs.records.states import JobStatus
from celery_jobs.records.store import Store
from celery_jobs.records.submit import NewJob
from celery_jobs.records.tables import jobs
from tests.support.waiting import wait_until_async
from tests.unit.following import AllRecords

WRITERS = 3
STEPS = 120
History = dict[str, list[str]]

# what may be done to a job in a state, and what a stream tells of it
DOING: dict[str, list[tuple[str, ...]]] = {
    "pending": [("running",), ("running",), ("running",), ("canceled",), ("deleted",)],
    "running": [("completed",), ("failed",), ("canceling",), ("canceling", "deleted")],
    "canceling": [("canceled",), ("deleted",)],
    "completed": [("deleted",)],
}


def apply(connection: Connection, job_id: JobId, now: str, told: tuple[str, ...]) -> None:
    if told[-1] == "deleted":
        delete_job(connection, job_id)
    elif told[0] in ("canceling", "canceled") and now != "canceling":
        cancel(connection, job_id)
    else:
        statement = move({JobStatus(now): JobStatus(told[0])}, jobs.c.id == job_id)
        assert connection.execute(statement).rowcount == 1


class Writer:
    """Makes jobs and leads them through their lives; some of its transactions stay open for a while."""

    def __init__(self, store: Store, seed: int) -> None:
        self.history: History = defaultdict(list)
        self._store = store
        self._random = random.Random(seed)

    def work(self) -> None:
        for _ in range(STEPS):
            size, pause = self._random.choice([(1, 0.0), (1, 0.0), (3, 0.0), (4, 0.03), (40, 0.0)])
            chosen = dict.fromkeys(self._choose() for _ in range(size))
            for job_id, told in self._store.write(self._transaction, chosen, pause):
                self.history[job_id] += told
            time.sleep(self._random.choice([0, 0, 0.001, 0.01]))

    def _transaction(
        self, connection: Connection, chosen: Iterable[JobId | None], pause: float
    ) -> list[tuple[JobId, tuple[str, ...]]]:
        done: list[tuple[JobId, tuple[str, ...]]] = []
        for job_id in chosen:
            done.append(self._step(connection, job_id))
            time.sleep(pause / 4)
        return done

    def _choose(self) -> JobId | None:
        alive = [job_id for job_id, told in self.history.items() if told[-1] in DOING]
        return JobId(self._random.choice(alive)) if alive and self._random.random() < 0.6 else None

    def _step(self, connection: Connection, job_id: JobId | None) -> tuple[JobId, tuple[str, ...]]:
        if job_id is None:
            job = NewJob("compute", "jobs")
            submit.insert_batch(connection, [job])
            return job.id, ("pending",)
        now = self.history[job_id][-1]
        told = self._random.choice(DOING[now])
        apply(connection, job_id, now, told)
        return job_id, told


class Client:
    """Follows until the last job is told to be canceled; `pause` and `cut` say how it behaves."""

    def __init__(self, all_jobs: AllJobs, *, pause: float = 0.0, cut: bool = False) -> None:
        self.told: History = defaultdict(list)
        self.cuts = 0
        self._all = all_jobs
        self._pause = pause
        self._cut = cut
        self._random = random.Random(self._pause)
        self._mark: str | None = None

    async def begin(self) -> Follower:
        follower = Follower(self._all, JobFilter(), 0.02)
        await follower.begin(self._mark)
        return follower

    async def follow(self, follower: Follower, last: JobId) -> None:
        while await self._connection(follower, last):
            self.cuts += 1
            await asyncio.sleep(self._random.choice([0, 0.01, 0.05]))
            follower = await self.begin()

    async def _connection(self, follower: Follower, last: JobId) -> bool:
        """True when it was cut before the end."""
        left = self._random.randrange(1, 12)
        try:
            async for chunk in follower.frames():
                self._take(chunk)
                if "canceled" in self.told.get(last, ()):
                    return False
                await asyncio.sleep(self._random.choice([0, 0, 0, 0, self._pause]))
                left -= 1
                if self._cut and left <= 0:
                    return True
        finally:
            follower.close()
        raise AssertionError("the stream ended by itself")

    def _take(self, chunk: bytes) -> None:
        for line in chunk.decode().splitlines():
            if line.startswith("id: "):
                self._mark = line.removeprefix("id: ")
            elif line.startswith("data: "):
                event = json.loads(line.removeprefix("data: "))
                self.told[event["id"]].append(event["status"])


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'jobs.db'}"
    return request.getfixturevalue("postgres_server").new_database()


@pytest.fixture
async def records(url: str) -> AsyncIterator[AllRecords]:
    upgrade(Settings(DATABASE_URL=url))  # type: ignore[call-arg]
    store = Store(url)
    records = AllRecords(store)
    yield records
    await records.close()
    store.close()


async def write_while(records: AllRecords, url: str, seed: int, last: JobId) -> History:
    stores = [Store(url) for _ in range(WRITERS)]
    writers = [Writer(store, seed * WRITERS + number) for number, store in enumerate(stores)]
    await asyncio.gather(*(asyncio.to_thread(writer.work) for writer in writers))
    await asyncio.to_thread(records.store.write, cancel, last)
    for store in stores:
        store.close()
    return {job_id: told for writer in writers for job_id, told in writer.history.items()}


def in_order(told: list[str]) -> list[str]:
    """Without what was told once more after a resume."""
    return list(dict.fromkeys(told))


def fits(told: list[str], happened: list[str]) -> bool:
    """A cancellation that nobody saw before the deletion cannot be told from that which a deletion brings."""
    return told == happened or (happened[-1] == "deleted" and told == [each for each in happened if each != "canceled"])


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 10))])
async def test_no_client_misses_a_status(records: AllRecords, url: str, seed: int):
    last = records.new_job()
    hub = Hub()
    all_jobs = AllJobs(records, hub, page_rows=7, most_bytes_held=20_000)
    reading = asyncio.create_task(all_jobs.run())
    steady, slow, cut, both = clients = [
        Client(all_jobs),
        Client(all_jobs, pause=0.5),
        Client(all_jobs, cut=True),
        Client(all_jobs, pause=0.3, cut=True),
    ]
    following = [client.follow(await client.begin(), last) for client in clients]
    writing = asyncio.create_task(write_while(records, url, seed, last))
    await asyncio.wait_for(asyncio.gather(*following), 90)
    happened = await writing

    async def rests() -> bool:
        return all_jobs.done == all_jobs.begun

    await wait_until_async(rests, "the reader rests, since all have left")
    reading.cancel()
    assert cut.cuts > 5
    assert both.cuts > 1
    for client in (steady, slow):
        wrong = {job: (told, client.told[job]) for job, told in happened.items() if not fits(client.told[job], told)}
        assert not wrong
    for client in (cut, both):
        for job, statuses in happened.items():
            told = in_order(client.told[job])
            if "deleted" in statuses:  # not told when it was deleted while the client was away
                assert told == [status for status in statuses if status in told]
            else:
                assert told == statuses


def test_the_writers_do_all_there_is_to_do(tmp_path: Path):
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    upgrade(Settings(DATABASE_URL=url))  # type: ignore[call-arg]
    store = Store(url)
    writers = [Writer(store, seed) for seed in range(3)]
    for writer in writers:
        writer.work()
    store.close()
    lives = {tuple(told) for writer in writers for told in writer.history.values()}
    assert {told[-1] for told in lives} > {"failed", "canceled", "deleted"}
    assert ("pending", "running", "completed", "deleted") in lives

"""Jobs at every moment of their life when a database fails, and what must be true of them afterwards."""

from __future__ import annotations

import re
import sqlite3
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import psycopg
from ulid import ULID

from tests.support.jobs import PREFIX, Jobs
from tests.support.processes import Process
from tests.support.sse import Event
from tests.support.stack import Stack
from tests.support.waiting import wait_until

ANSWERED_SECONDS = 5.0 + 2.0  # the contract's bound, and what a busy machine adds
RECOVERED_SECONDS = 20.0

# what a record, an answer or a log must never show of an outage
RAW = re.compile(r"database is locked|Traceback|psycopg|sqlalchemy|OperationalError", re.IGNORECASE)
TOLD = "told to raise"
MOST_LINES = 60  # of one process about one outage: one line a duty when it begins, one when it is over


class Watched:
    """A stream that is read in the background."""

    def __init__(self, stack: Stack, job: str) -> None:
        self.events: list[Event] = []
        self._ready = threading.Event()
        self._pool = ThreadPoolExecutor(1)
        self._done = self._pool.submit(self._read, Jobs(httpx.Client(base_url=stack.apis[0].url, timeout=30)), job)
        self._ready.wait(20)

    def _read(self, jobs: Jobs, job: str) -> None:
        with jobs.client, jobs.stream(job) as stream:
            for event in stream:
                self.events.append(event)
                self._ready.set()

    def statuses(self) -> list[str | None]:
        """All that it said, once the server has ended it."""
        self._done.result(RECOVERED_SECONDS)
        self._pool.shutdown()
        said = [event.status for event in self.events if event.comment is None]
        return [status for number, status in enumerate(said) if number == 0 or said[number - 1] != status]


class Moments:
    """One job for each moment: set up before the outage, moved on during it, judged after it."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.readable = False
        self.logs = {process: len(process.log) for process in [*(api.process for api in stack.apis), *stack.workers]}
        self.lasting = self._held("hold")
        self.returning = self._held("hold")
        self.raising = self._held("hold", ending="raise")
        self.canceling = self._held("hold")
        stack.jobs.cancel(self.canceling[0])
        self.stepping = self._held("stepping", steps=2)
        self.late = self._held("hold_async")  # somebody tries to cancel it while the database is away
        self.streams = {job: Watched(stack, job) for job, _ in (self.lasting, self.returning, self.canceling)}
        self.waiting: Future[httpx.Response] = self._wait_for(self.returning[0])
        self.sent = self._fetched_but_not_claimed()

    def _held(self, task: str, **arguments: Any) -> tuple[str, str]:
        name = self.stack.name()
        job = self.stack.jobs.submit(task, name=name, **arguments)
        self.stack.journal.wait_start(job)
        return job, name

    def _wait_for(self, job: str) -> Future[httpx.Response]:
        url, headers = f"{self.stack.apis[0].url}{PREFIX}/{job}", {"Prefer": "wait=60"}
        return ThreadPoolExecutor(1).submit(httpx.get, url, headers=headers, timeout=70)

    def _fetched_but_not_claimed(self) -> list[str]:
        """Messages that lie in the broker when the database goes: their workers are frozen for so long."""
        wait_until(self._freeze, "the workers are frozen outside of a transaction")
        jobs = [self.stack.jobs.submit("note") for _ in range(2)]
        time.sleep(0.5 if self.stack.workers else 0.0)  # for the hand-over, which nobody can see from outside
        return jobs

    def _freeze(self) -> bool:
        """Freeze the workers; False when one was writing, since its lock on a SQLite file would stay."""
        for worker in self.stack.workers:
            worker.stop()
        if self.stack.kind.database != "sqlite" or not self.stack.workers or is_free(self.stack):
            return True
        for worker in self.stack.workers:
            worker.cont()
        return False

    # --- while the database is away

    def go_on(self) -> None:
        """The database is away now."""
        for worker in self.stack.workers:
            worker.cont()
        name = self.stepping[1]
        self.stack.journal.release(self.returning[1], self.raising[1], self.canceling[1], f"{name}-1")
        for job, _ in (self.returning, self.raising, self.canceling):
            self.stack.journal.wait_end(job)

    def refused(self, *, reads: bool = True) -> None:
        """What the API says meanwhile; `reads`: those are refused as well."""
        client = self.stack.jobs.client
        self.readable = not reads
        calls: list[tuple[str, str]] = [
            ("POST", "/api/v1/tasks/sample.note"),
            ("POST", f"{PREFIX}/{self.late[0]}/$cancel"),
            ("DELETE", f"{PREFIX}/{self.late[0]}"),
            ("PATCH", "/api/v1/queues/jobs"),
        ]
        if reads:
            calls += [("GET", path) for path in (PREFIX, f"{PREFIX}/{ULID()}", f"{PREFIX}/{ULID()}/$stream", "/readyz")]
        with ThreadPoolExecutor(len(calls)) as pool:
            for answer, seconds in pool.map(lambda call: _timed(client, *call), calls):
                assert seconds < ANSWERED_SECONDS, (answer.request.url, seconds)
                assert answer.status_code == 503, (answer.request.method, answer.request.url, answer.text)
                assert int(answer.headers["retry-after"]) > 0
                assert answer.headers["content-type"] == "application/problem+json"
                assert not RAW.search(answer.text), answer.text
        assert client.get("/livez").status_code == 200
        if reads:
            health = client.get("/health")
            assert (health.status_code, health.json()["status"]) == (503, "unhealthy")

    # --- when it is back

    def judge(self, *, late_canceled: bool = False) -> None:
        """Every record is true, each job ran once, nobody was taken for dead, streams have said it all."""
        stack, jobs = self.stack, self.stack.jobs
        wait_until(lambda: jobs.client.get("/readyz").status_code == 200, "the API is ready again", RECOVERED_SECONDS)
        assert jobs.wait(self.returning[0], "completed", timeout=RECOVERED_SECONDS)["attempt"] == 1
        assert jobs.result(self.returning[0])["result"] == self.returning[1]
        assert jobs.wait(self.raising[0], "failed")["error"] == f"ValueError: {TOLD}"
        jobs.wait(self.canceling[0], "canceled")
        for job in self.sent:
            jobs.wait(job, "completed", timeout=RECOVERED_SECONDS)
        assert jobs.status(self.lasting[0]) == "running"
        wait_until(lambda: _progress(jobs.record(self.stepping[0])) == 2, "the last report is recorded")
        late = "canceled" if late_canceled else "running"
        jobs.wait(self.late[0], late)
        waited = self.waiting.result(RECOVERED_SECONDS)
        # where the record can be read, it says what it said before the outage
        true = ("completed", "running") if self.readable else ("completed",)
        assert waited.status_code == 503 or waited.json()["status"] in true, waited.text
        assert self.streams[self.returning[0]].statuses() == ["running", "completed"]
        assert self.streams[self.canceling[0]].statuses()[-2:] == ["canceling", "canceled"]
        stack.journal.release(self.lasting[1], self.late[1], f"{self.stepping[1]}-2")
        jobs.wait(self.lasting[0], "completed")
        assert self.streams[self.lasting[0]].statuses() == ["running", "completed"]
        jobs.wait(self.stepping[0], "completed")
        if not late_canceled:
            jobs.wait(self.late[0], "completed")
        everyone = [self.lasting, self.returning, self.raising, self.canceling, self.stepping, self.late]
        for job in [*(job for job, _ in everyone), *self.sent]:
            assert len(stack.journal.starts(job)) == 1, stack.journal.lines(job)
            assert jobs.record(job)["attempt"] == 1
        jobs.wait(jobs.submit("note"), "completed")
        self.read_logs()

    def read_logs(self) -> None:
        """An outage is told in a few plain lines."""
        for process, seen in self.logs.items():
            told = process.log[seen:]
            for traceback in told.split("Traceback (most recent call last)")[1:]:
                assert TOLD in traceback, f"{process.name}: {told}"  # of the job that was told to raise
            assert "taken for dead" not in told, told
            about = [line for line in told.splitlines() if "celery_jobs" in line or "database" in line]
            assert len(about) <= MOST_LINES, f"{process.name} wrote {len(about)} lines: {told}"


def _timed(client: httpx.Client, method: str, path: str) -> tuple[httpx.Response, float]:
    began = time.monotonic()
    body = {"PATCH": {"paused": False}, "POST": {}}.get(method)
    with httpx.Client(base_url=client.base_url, timeout=30) as alone:
        answer = alone.request(method, path, json=body)
    return answer, time.monotonic() - began


def _progress(record: dict[str, Any]) -> float | None:
    return (record["progress"] or {}).get("current")


def file_of(stack: Stack) -> Path:
    """Its SQLite file."""
    return Path(stack.database_url.removeprefix("sqlite:///"))


def is_free(stack: Stack) -> bool:
    """Whether nobody writes in its SQLite file now."""
    with closing(sqlite3.connect(file_of(stack), isolation_level=None, timeout=0.2)) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return False
        connection.execute("ROLLBACK")
        return True


def worker_rows(url: str) -> set[str]:
    """The incarnations of the workers that the record knows."""
    with psycopg.connect(url) as connection:
        return {row[0] for row in connection.execute("SELECT incarnation FROM workers").fetchall()}


def ends_within(process: Process, seconds: float) -> float:
    """Ask it to end (SIGTERM); how long it took, which must be within bounds."""
    began = time.monotonic()
    process.terminate()
    process.wait(seconds * 2 + 10)
    took = time.monotonic() - began
    assert took < seconds, f"{process.name} took {took:.1f} s to end\n{process.log_tail()}"
    return took

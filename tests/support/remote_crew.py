"""Remote workers that keep their word while the service fails: each goes on after every lost answer."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType

import httpx

from tests.support.jobs import good
from tests.support.remote import Json, Remote, fresh
from tests.support.waiting import wait_until

PAUSE_SECONDS = 0.1  # before one asks again
PATIENCE_SECONDS = 60.0


def answered(call: Callable[[], httpx.Response]) -> tuple[httpx.Response, bool]:
    """The first answer that is no outage, and whether an earlier answer may have been lost."""
    lost = False
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            answer = call()
            if answer.status_code < 500:
                return answer, lost
            assert answer.status_code == 503, f"{answer.status_code} {answer.text}"
        except httpx.TransportError:
            pass
        lost = True
        assert time.monotonic() < deadline, "the service did not come back"
        time.sleep(PAUSE_SECONDS)


class Crew:
    """So many workers of one job, spread over API processes; and one who submits."""

    def __init__(self, urls: list[str], workers: int) -> None:
        self._clients = [
            httpx.Client(base_url=urls[number % len(urls)], timeout=20, verify=False) for number in range(workers + 1)
        ]
        self.boss = Remote(self._clients[0], room=fresh())
        self.runs: Counter[str] = Counter()  # runs that the service confirmed
        self.done: Counter[str] = Counter()
        self.dropped: Counter[str] = Counter()
        self.submitted: list[str] = []
        self._lock, self._over = threading.Lock(), threading.Event()
        self._pool = ThreadPoolExecutor(workers + 1)
        members = [self.boss.at(client).worker() for client in self._clients[1:]]
        self.job = members[0].register()["full_name"]
        for member in members:
            member.register()
        self._working: list[Future[None]] = [self._pool.submit(self._work, member) for member in members]

    def submit(self, many: int) -> Future[None]:
        """In the background; a key makes sure that what is asked twice is done once."""

        def all_of_them() -> None:
            for number in range(many):
                key = {"Idempotency-Key": f"{self.boss.room}-{number}"}
                answer, _ = answered(lambda key=key: self.boss.post(self.job, json={"payload": {}}, headers=key))
                self.submitted.append(good(answer, 202).json()["id"])

        return self._pool.submit(all_of_them)

    def _work(self, worker: Remote) -> None:
        while not self._over.is_set():
            answer, _ = answered(lambda: worker.ask(1))
            task = good(answer, 200).json()["task"]
            if task is not None and self._told(worker, task, "running", self.runs):
                self._told(worker, task, "completed", self.done)

    def _told(self, worker: Remote, task: Json, status: str, ledger: Counter[str]) -> bool:
        """Whether the report counted; after a lost answer the task itself says so."""
        answer, lost = answered(lambda: worker.patch(task, status))
        counted = answer.status_code == 200
        if not counted and lost:
            now = good(answered(lambda: worker.look(task))[0], 200).json()
            counted = (now["status"], now["worker_id"]) == (status, worker.worker_id)
        assert counted or answer.status_code in (403, 409), answer.text
        with self._lock:
            (ledger if counted else self.dropped)[task["id"]] += 1
        return counted

    def wait_done(self, many: int, timeout: float = 90.0) -> None:
        """Until so many tasks are done; fails at once with what a worker complains of."""

        def enough() -> bool:
            for working in self._working:
                if working.done():
                    working.result()
            return len(self.done) >= many

        wait_until(enough, f"{many} tasks are done", timeout)

    def judge(self) -> None:
        """Every task was run once and is completed, as the service says too."""
        assert len(set(self.submitted)) == len(self.submitted)
        assert set(self.runs) == set(self.done) == set(self.submitted)
        assert set(self.runs.values()) == {1}, self.runs.most_common(3)
        assert self.boss.tasks(status="completed", limit=1)["total"] == len(self.submitted)
        assert self.boss.tasks(limit=1)["total"] == len(self.submitted)

    def __enter__(self) -> Crew:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._pool.shutdown()
        for client in self._clients:
            client.close()
        if error is None:
            for working in self._working:
                working.result()

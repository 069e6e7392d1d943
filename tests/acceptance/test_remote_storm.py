"""Everything at once (contract, section 8): whatever the order, no server error, no task run twice, none forgotten."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import httpx
import pytest

from tests.acceptance.kinds import each
from tests.support.jobs import PREFIX, good
from tests.support.remote import Json, Remote, fresh
from tests.support.stack import PREFORK, SQLITE, Stack

pytestmark = pytest.mark.xdist_group("remote-storm")

JOBS = ("Rotate", "Move", "Scale")


@pytest.fixture(scope="module", params=each(PREFORK, SQLITE), ids=str)
def twins(request: pytest.FixtureRequest, start_stack: Callable[..., Stack]) -> Stack:
    """Two API processes on one database, where claims go back and the silent are swept soon."""
    return start_stack(
        request.param,
        worker=False,
        apis=2,
        ZNDRAW_JOBLIB_WORKER_TIMEOUT_SECONDS="3",
        ZNDRAW_JOBLIB_CLAIM_TIMEOUT_SECONDS="2",
        ZNDRAW_JOBLIB_SWEEPER_INTERVAL_SECONDS="1",
    )


class Storm:
    """One room, and all that its actors saw."""

    def __init__(self, clients: list[httpx.Client], seconds: float) -> None:
        self.room = fresh()
        self.clients = clients
        self.until = time.monotonic() + seconds
        self.submitted: list[str] = []
        self.deleted: set[str] = set()
        self.begun: Counter[str] = Counter()
        self.ended: Counter[str] = Counter()
        self.status: dict[str, str] = {}
        self.seen: Counter[tuple[str, int]] = Counter()
        self._lock = threading.Lock()

    def full(self, name: str) -> str:
        return f"{self.room}:modifiers:{name}"

    def saw(self, what: str, answer: httpx.Response, *fine: int) -> bool:
        """Whether it counted; any answer that nobody expects ends the test."""
        good(answer, *fine)
        with self._lock:
            self.seen[what, answer.status_code] += 1
        return answer.is_success

    def some_task(self, chance: random.Random) -> str | None:
        recent = self.submitted[-30:]
        return chance.choice(recent) if recent else None

    def submitter(self, remote: Remote, chance: random.Random) -> None:
        answer = remote.post(self.full(chance.choice(JOBS)), json={"payload": {"n": chance.random()}})
        if self.saw("submit", answer, 202, 404):
            self.submitted.append(answer.json()["id"])

    def worker(self, remote: Remote, chance: random.Random) -> None:
        """Comes, serves for a while in its own way, and leaves or falls silent."""
        me = remote.worker()
        for name in chance.sample(JOBS, 2):
            self.saw("register", me.put(name), 200, 201)
        for _ in range(chance.randrange(3, 15)):
            answer = me.ask(chance.choice([None, 0.3, 1]))
            if not self.saw("claim", answer, 200, 404) or time.monotonic() > self.until:
                break
            task = answer.json()["task"]
            if task is not None and chance.random() > 0.1:
                self.serve(me, task, chance)
            if chance.random() < 0.2:
                self.saw("beat", me.beat(), 200, 404)
        if chance.random() < 0.7:
            self.saw("leave", me.leave(), 204, 404)

    def serve(self, me: Remote, task: Json, chance: random.Random) -> None:
        if not self.saw("running", me.patch(task, "running"), 200, 403, 404, 409):
            return
        with self._lock:
            self.begun[task["id"]] += 1
        if chance.random() < 0.1:
            return  # it crashed
        status = chance.choice(["completed", "completed", "failed"])
        if self.saw(status, me.patch(task, status), 200, 403, 404, 409):
            with self._lock:
                self.ended[task["id"]] += 1
                self.status[task["id"]] = status

    def meddler(self, remote: Remote, chance: random.Random) -> None:
        """Cancels over either API, deletes, looks, and asks for sweeps."""
        task = self.some_task(chance)
        act = chance.randrange(8)
        if task is None or act == 0:
            remote.sweep()
        elif act == 1:
            self.saw("cancel", remote.patch(task, "cancelled"), 200, 404, 409)
        elif act == 2:
            self.saw("$cancel", remote.client.post(f"{PREFIX}/{task}/$cancel"), 202, 404, 409)
        elif act == 3:
            self.deleted.add(task)
            self.saw("delete", remote.client.delete(f"{PREFIX}/{task}"), 204, 404)
        elif act == 4:
            self.saw("look", remote.look(task), 200, 404)
        elif act == 5:
            remote.tasks(limit=20)
            remote.jobs()
        elif act == 6:
            remote.page("/workers")
        else:
            self.saw("$retry", remote.client.post(f"{PREFIX}/{task}/$retry"), 202, 404, 409)

    def act(self, number: int) -> None:
        remote = Remote(self.clients[number], room=self.room)
        chance = random.Random(number)
        actor = (self.worker, self.worker, self.submitter, self.meddler)[number % 4]
        while time.monotonic() < self.until:
            actor(remote, chance)


def drained(storm: Storm) -> None:
    """What waits is served, and what its worker forgot comes back or fails, until nothing is unfinished."""
    heir = Remote(storm.clients[0], room=storm.room).worker()
    for name in JOBS:
        heir.register(name)
    deadline = time.monotonic() + 30
    while any(heir.tasks(status=status, limit=1)["total"] for status in ("pending", "claimed", "running")):
        assert time.monotonic() < deadline, [
            heir.tasks(status=s, limit=5)["items"] for s in ("pending", "claimed", "running")
        ]
        task = heir.claim(wait=0.5)
        if task is not None:
            heir.report(task, "running")
            storm.begun[task["id"]] += 1
            heir.report(task, "completed")
            storm.status[task["id"]] = "completed"


@pytest.mark.slow
@pytest.mark.parametrize(("seconds", "actors"), [(5, 8), (60, 24)])
def test_a_storm_loses_nothing(twins: Stack, seconds: float, actors: int) -> None:
    with ExitStack() as opened:
        clients = [
            opened.enter_context(httpx.Client(base_url=twins.apis[number // 4 % 2].url, timeout=30, verify=False))
            for number in range(actors)
        ]
        storm = Storm(clients, seconds)
        with ThreadPoolExecutor(actors) as pool:
            list(pool.map(storm.act, range(actors)))
        drained(storm)
        looker = Remote(clients[0], room=storm.room)
        total = looker.tasks(limit=1)["total"]
        pages = [looker.tasks(limit=1000, offset=offset)["items"] for offset in range(0, total, 1000)]
    print(sorted(storm.seen.items()))
    found = {task["id"]: task for page in pages for task in page}
    assert set(storm.submitted) - set(found) <= storm.deleted
    assert [task for task, runs in storm.begun.items() if runs > 1] == []
    assert {task: found[task]["status"] for task in storm.status if task in found} == {
        task: status for task, status in storm.status.items() if task in found
    }
    assert len(storm.ended) > seconds, storm.seen
    for api in twins.apis:
        assert "Traceback" not in api.process.log
        assert "deadlock" not in api.process.log

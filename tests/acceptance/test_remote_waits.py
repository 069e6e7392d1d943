"""`Prefer: wait=N` of remote workers and of those who wait for them (contract, sections 3 and 8; case C11)."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import httpx
import psutil
import pytest

from tests.support.jobs import good
from tests.support.remote import PREFIX, Json, Remote, refused
from tests.support.stack import EMBEDDED, Stack
from tests.support.waiting import wait_until

pytestmark = pytest.mark.xdist_group("remote-waits")

SLACK_SECONDS = 5.0
SHORT_SECONDS = 1.0
WAITERS = 200
ROUNDS = 20
POOL = 8  # connections that a process may keep once it has needed them, however many wait


@pytest.fixture
def serving(twins: Stack) -> tuple[Remote, str]:
    """A worker and the job that it serves."""
    return Remote(twins.apis[0].client).serving()


def connections(stack: Stack, api: int = 0) -> set[Any]:
    """The clients that an API process has, by their addresses: those that are leaving may count for a while."""
    port = urlsplit(stack.apis[api].url).port
    found = psutil.Process(stack.apis[api].process.pid).net_connections("tcp")
    return {each.raddr for each in found if each.laddr.port == port and each.raddr}


def waits(stack: Stack, ask: Callable[[], Any], pool: ThreadPoolExecutor, api: int = 0) -> Future[Any]:
    """A request that is open at this API process, and not answered yet."""
    before = connections(stack, api)
    asked = pool.submit(ask)
    wait_until(lambda: connections(stack, api) - before or asked.done(), "the request is open")
    assert not asked.done(), asked.result()
    return asked


def on_its_own(worker: Remote, url: str, ask: Callable[[Remote], Any]) -> Any:
    """A request on a connection that nobody else has."""
    with httpx.Client(base_url=url, timeout=150, verify=False) as client:
        return ask(worker.at(client))


def test_a_waiting_claim_is_woken_by_a_submission_through_the_other_process(
    twins: Stack, serving: tuple[Remote, str]
) -> None:
    worker, job = serving
    other = worker.at(twins.apis[1].client)
    with ThreadPoolExecutor(1) as pool:
        for _ in range(3):
            url = twins.apis[0].url
            asked = waits(twins, lambda url=url: on_its_own(worker, url, lambda each: each.ask(50)), pool)
            task = other.submit(job)
            answer = good(asked.result(timeout=SLACK_SECONDS), 200)
            assert answer.json()["task"]["id"] == task["id"]
            assert answer.headers["preference-applied"] == "wait"


def test_a_waiting_claim_is_woken_by_a_task_that_goes_back(twins: Stack, serving: tuple[Remote, str]) -> None:
    worker, job = serving
    second = worker.worker()
    second.register()
    task = second.at_state(job, "claimed")
    with ThreadPoolExecutor(1) as pool:
        asked = waits(twins, lambda: on_its_own(worker, twins.apis[0].url, lambda each: each.claim(50)), pool)
        good(second.at(twins.apis[1].client).leave(), 204)
        assert asked.result(timeout=SLACK_SECONDS)["id"] == task["id"]


def test_one_task_wakes_one_of_many_waiting_claims(twins: Stack, serving: tuple[Remote, str]) -> None:
    first, job = serving
    workers = [first.worker() for _ in range(6)]
    for worker in workers:
        worker.register()
    with ThreadPoolExecutor(len(workers)) as pool:
        asked = [
            waits(twins, lambda w=w, n=n: on_its_own(w, twins.apis[n % 2].url, lambda e: e.claim(4)), pool, n % 2)
            for n, w in enumerate(workers)
        ]
        task = first.submit(job)
        got = [each.result(timeout=30) for each in asked]
    assert [each["id"] for each in got if each is not None] == [task["id"]]


def test_a_waiting_claim_whose_time_is_up_has_no_task(serving: tuple[Remote, str]) -> None:
    worker, job = serving
    begun = time.monotonic()
    answer = good(worker.ask(1), 200)
    assert 0.9 <= time.monotonic() - begun < 1 + SLACK_SECONDS
    assert (answer.json(), answer.headers["preference-applied"]) == ({"task": None}, "wait")
    task = worker.submit(job)
    begun = time.monotonic()
    claimed = good(worker.ask(50), 200)
    assert (claimed.json()["task"]["id"], claimed.headers["preference-applied"]) == (task["id"], "wait")
    assert time.monotonic() - begun < SLACK_SECONDS


def test_a_waiting_claim_that_its_worker_gave_up_takes_nothing(twins: Stack, serving: tuple[Remote, str]) -> None:
    worker, job = serving
    where = urlsplit(twins.apis[0].url)
    body = b'{"worker_id": "%s"}' % str(worker.worker_id).encode()
    head = (
        f"POST {PREFIX}/tasks/claim HTTP/1.1\r\nHost: {where.netloc}\r\nPrefer: wait=50\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    for _ in range(ROUNDS):
        before = connections(twins)
        with socket.create_connection((str(where.hostname), where.port or 80)) as gone:
            gone.sendall(head.encode() + body)
            wait_until(lambda before=before: connections(twins) - before, "the claim is open")
            worker.claim()  # what this answers, the server has read after the other
        task = worker.submit(job)
        assert worker.claim_one()["id"] == task["id"]


def test_a_wait_for_a_task_ends_only_with_the_task(twins: Stack, serving: tuple[Remote, str]) -> None:
    worker, job = serving
    task = worker.submit(job)
    with ThreadPoolExecutor(2) as pool:
        asked = [
            waits(twins, lambda n=n: on_its_own(worker, twins.apis[n].url, lambda e: e.look(task, 50)), pool, n)
            for n in (0, 1)
        ]
        worker.claim_one()
        worker.report(task, "running")
        short = good(worker.look(task, 1), 200)
        assert (short.json()["status"], short.headers["preference-applied"]) == ("running", "wait")
        assert not any(each.done() for each in asked)
        worker.report(task, "failed", error="ValueError: no")
        answers = [good(each.result(timeout=SLACK_SECONDS), 200) for each in asked]
    assert [answer.json() for answer in answers] == [worker.task(task)] * 2
    assert {answer.headers["preference-applied"] for answer in answers} == {"wait"}
    ended = good(worker.look(task, 50), 200)
    assert (ended.json()["status"], ended.headers["preference-applied"]) == ("failed", "wait")
    assert ended.elapsed.total_seconds() < SLACK_SECONDS


@pytest.mark.parametrize("status", ["completed", "failed", "cancelled"])
def test_a_wait_for_a_task_that_has_ended_is_no_wait(serving: tuple[Remote, str], status: str) -> None:
    worker, job = serving
    task = worker.at_state(job, status)
    answer = good(worker.look(task, 50), 200)
    assert answer.json() == task
    assert answer.elapsed.total_seconds() < SLACK_SECONDS


def test_a_waiting_claim_ends_when_its_worker_leaves(twins: Stack, serving: tuple[Remote, str]) -> None:
    worker, _ = serving
    with ThreadPoolExecutor(1) as pool:
        asked = waits(twins, lambda: on_its_own(worker, twins.apis[0].url, lambda each: each.ask(12)), pool)
        good(worker.at(twins.apis[1].client).leave(), 204)
        refused(asked.result(timeout=SLACK_SECONDS), 404, "worker-not-found")


def test_a_waiter_hears_that_its_task_was_deleted(twins: Stack, serving: tuple[Remote, str]) -> None:
    worker, job = serving
    task = worker.submit(job)
    with ThreadPoolExecutor(1) as pool:
        asked = waits(twins, lambda: on_its_own(worker, twins.apis[0].url, lambda e: e.look(task, 50)), pool)
        good(twins.apis[1].client.delete(f"/api/v1/jobs/{task['id']}"), 204)
        refused(asked.result(timeout=SLACK_SECONDS), 404, "task-not-found")


@pytest.fixture(scope="module")
def bounded(start_stack: Callable[..., Stack]) -> Stack:
    """A service that lets nobody wait for longer than a second."""
    return start_stack(EMBEDDED, worker=False, ZNDRAW_JOBLIB_LONG_POLL_MAX_WAIT_SECONDS="1")


@pytest.mark.parametrize("prefer", ["wait=1000000000", "wait=120", "wait=1, wait=abc", "foo, wait=50", 'Wait="7"'])
def test_no_wait_is_longer_than_the_setting(bounded: Stack, prefer: str) -> None:
    worker, job = Remote(bounded.apis[0].client).serving()
    begun = time.monotonic()
    claim = good(worker.ask(headers={"Prefer": prefer}), 200)
    task = worker.submit(job)
    look = good(worker.send("GET", f"/tasks/{task['id']}", headers={"Prefer": prefer}), 200)
    assert 1.8 < time.monotonic() - begun < 2 + SLACK_SECONDS
    assert {answer.headers["preference-applied"] for answer in (claim, look)} == {"wait"}


@pytest.mark.parametrize(
    "prefer", ["wait=-1", "wait=abc", "wait=1e9", "wait=", "wait", "wait=1.5", "", "foo", "await=1"]
)
def test_an_odd_preference_is_as_if_it_were_not_there(bounded: Stack, prefer: str) -> None:
    worker, job = Remote(bounded.apis[0].client).serving()
    begun = time.monotonic()
    claim = good(worker.ask(headers={"Prefer": prefer}), 200)
    task = worker.submit(job)
    look = good(worker.send("GET", f"/tasks/{task['id']}", headers={"Prefer": prefer}), 200)
    assert time.monotonic() - begun < 0.9
    assert (claim.json()["task"], look.json()["status"]) == (None, "pending")
    assert not any("preference-applied" in answer.headers for answer in (claim, look))


def test_a_wait_of_no_time_is_honoured_at_once(serving: tuple[Remote, str]) -> None:
    worker, job = serving
    answer = good(worker.ask(0), 200)
    assert (answer.json(), answer.headers["preference-applied"]) == ({"task": None}, "wait")
    assert good(worker.look(worker.submit(job), 0), 200).headers["preference-applied"] == "wait"


def p95(seconds: list[float]) -> float:
    return sorted(seconds)[int(len(seconds) * 0.95)]


def test_many_waiters_leave_others_and_the_database_alone(twins: Stack, serving: tuple[Remote, str]) -> None:
    """Case C11 for claims and for waits on tasks: short requests stay fast, and no wait holds a connection."""
    worker, job = serving
    url = twins.apis[0].url
    held = worker.at_state(job, "running")
    idle = twins.database_connections()
    ends = [lambda each: each.claim(60), lambda each: each.task(held, 60)]
    with ThreadPoolExecutor(WAITERS) as pool:
        before = connections(twins)
        asked = [pool.submit(on_its_own, worker, url, ends[number % 2]) for number in range(WAITERS)]
        wait_until(lambda: len(connections(twins) - before) >= WAITERS, "all wait", 60)
        took = short_requests(worker)
        busy = twins.database_connections()
        assert not any(each.done() for each in asked)
        told = time.monotonic()
        worker.report(held, "completed")
        assert {each.result(timeout=30)["status"] for each in asked[1::2]} == {"completed"}
        assert time.monotonic() - told < SLACK_SECONDS
        tasks = [worker.submit(job)["id"] for _ in asked[0::2]]
        assert sorted(each.result(timeout=60)["id"] for each in asked[0::2]) == sorted(tasks)
    for name, seconds in took.items():
        assert p95(seconds) < SHORT_SECONDS, (name, sorted(seconds)[-3:])
    assert busy <= idle + POOL


def short_requests(worker: Remote) -> dict[str, list[float]]:
    """How long others' short requests take meanwhile."""
    other, job = worker.serving()
    asked: dict[str, Callable[[], Any]] = {
        "list": other.jobs,
        "submit": lambda: other.submit(job),
        "claim": other.claim,
        "heartbeat": other.beat,
        "health": lambda: good(other.client.get("/health")),
    }
    took: dict[str, list[float]] = {name: [] for name in asked}
    for _ in range(ROUNDS):
        for name, ask in asked.items():
            began = time.monotonic()
            ask()
            took[name].append(time.monotonic() - began)
    return took


def test_a_service_that_stops_lets_its_waiters_go_with_an_answer(twins: Stack, serving: tuple[Remote, str]) -> None:
    worker, job = serving
    leaving = twins.service.api()
    task: Json = worker.at_state(job, "running")
    with ThreadPoolExecutor(2) as pool:
        asks = [lambda each: each.look(task, 50), lambda each: each.ask(50)]
        asked = [pool.submit(on_its_own, worker, leaving.url, ask) for ask in asks]
        port = urlsplit(leaving.url).port
        process = psutil.Process(leaving.process.pid)
        wait_until(
            lambda: sum(c.laddr.port == port and bool(c.raddr) for c in process.net_connections("tcp")) >= 3,
            "both wait",
        )
        worker.at(leaving.client).task(task)  # what this answers, the server has read after the others
        began = time.monotonic()
        leaving.process.terminate()
        look, claim = (each.result(timeout=10) for each in asked)
    assert time.monotonic() - began < SLACK_SECONDS
    assert good(look, 200).json()["status"] == "running"
    if claim.status_code == 503:
        refused(claim, 503, "unavailable")
    else:
        assert good(claim, 200).json() == {"task": None}
    leaving.process.wait(timeout=10)

"""A TaskStream before servers that are not ours: ones that do not wait, are away, or answer with something else."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any
from uuid import uuid4

import httpx
import pytest

from celery_jobs.client import ClaimedTask, Forbidden, JobManager, TaskStream, Unauthorized, UnexpectedAnswer
from celery_jobs.client.retry import LONGEST_PAUSE_SECONDS
from tests.support.scripted import Asked, Said, ScriptedServer
from tests.support.waiting import stays, wait_until

CLAIM = "/v1/joblib/tasks/claim"
NOTHING = Said(body={"task": None})
AT_ONCE = 1.0  # seconds; a deadline with slack, not a measurement


def task(worker: str = "w") -> dict[str, Any]:
    return {
        "id": str(uuid4()),
        "job_name": "@global:modifiers:Rotate",
        "room_id": "room",
        "payload": {},
        "created_at": "2026-01-02T03:04:05+00:00",
        "worker_id": worker,
        "status": "claimed",
        "something_new": 1,
    }


class Api:
    """An ApiManager of somebody else, whose client has the base URL."""

    def __init__(self, url: str) -> None:
        self.http = httpx.Client(base_url=url)

    def get_headers(self) -> dict[str, str]:
        return {"X-Token": "theirs"}

    @property
    def base_url(self) -> str:
        return ""


class Foreign:
    """Answers claims with what `first` says and then, again and again, `then`; all else as a job service would."""

    def __init__(self, then: Said = NOTHING, *first: Said) -> None:
        self.then = then
        self.first = list(first)
        self.release = threading.Event()
        self.release.set()

    def __call__(self, asked: Asked) -> Said:
        if asked.path != CLAIM:
            return Said(201 if asked.method == "POST" else 200, {"id": "w"})
        said = self.first.pop(0) if self.first else self.then
        self.release.wait(10)
        return said


@contextmanager
def listening(stream: TaskStream) -> Generator[list[ClaimedTask | BaseException]]:
    """Iterated in another thread; what came out, and the exception that ended it."""
    came: list[ClaimedTask | BaseException] = []

    def iterate() -> None:
        try:
            came.extend(iter(stream))
        except BaseException as error:
            came.append(error)

    thread = threading.Thread(target=iterate)
    thread.start()
    try:
        yield came
    finally:
        stream.stop()
        thread.join(5)
        assert not thread.is_alive(), "stop() does not end the iteration"


def test_a_server_that_does_not_wait_is_asked_at_the_interval() -> None:
    server = ScriptedServer(Foreign())
    with server.serving(), listening(TaskStream(Api(server.url), "w", 0.3)):
        wait_until(lambda: len(server.times("POST", CLAIM)) >= 5, "it is asked five times")
    gaps = [later - earlier for earlier, later in pairwise(server.times("POST", CLAIM))]
    assert all(0.25 < gap < 2 for gap in gaps), gaps
    claim = next(asked for asked in server.asked if asked.path == CLAIM)
    assert claim.headers["x-token"] == "theirs"
    assert claim.headers["prefer"] == "wait=20"
    assert claim.body == {"worker_id": "w"}


def test_a_server_that_only_says_that_it_waited_makes_no_hot_loop() -> None:
    server = ScriptedServer(Foreign(Said(body={"task": None}, headers={"Preference-Applied": "wait"})))
    with server.serving(), listening(TaskStream(Api(server.url), "w")):
        wait_until(lambda: len(server.times("POST", CLAIM)) >= 3, "it is asked three times")
    assert all(later - earlier > 0.9 for earlier, later in pairwise(server.times("POST", CLAIM)))


def test_a_task_comes_at_once_from_a_server_that_waits() -> None:
    foreign = Foreign(Said(body={"task": task()}))
    foreign.release.clear()
    server = ScriptedServer(foreign)
    with server.serving(), listening(TaskStream(Api(server.url), "w")) as came:
        wait_until(lambda: server.asked, "it waits")
        released = time.monotonic()
        foreign.release.set()
        wait_until(lambda: came, "the task arrives")
        assert time.monotonic() - released < AT_ONCE
    assert isinstance(came[0], ClaimedTask)
    assert came[0].created_at.utcoffset() is not None


def test_stop_ends_a_wait_at_once_and_its_late_task_goes_to_the_next_stream() -> None:
    late = task()
    foreign = Foreign(NOTHING, Said(body={"task": late}))
    foreign.release.clear()
    server = ScriptedServer(foreign)
    with server.serving(), JobManager(server.url) as jobs:
        stream = jobs.listen()
        with listening(stream) as came:
            wait_until(lambda: server.times("POST", CLAIM), "it waits")
            told = time.monotonic()
            stream.stop()
        assert time.monotonic() - told < AT_ONCE
        assert came == []
        foreign.release.set()
        assert next(jobs.listen(interval=0.1)).id == late["id"]
        assert list(stream) == []


def test_stop_ends_a_pause_between_tries_at_once() -> None:
    with JobManager("http://127.0.0.1:9") as jobs, listening(stream := jobs.listen()):
        wait_until(lambda: stream._backoff._failures >= 4, "pauses are long")
        told = time.monotonic()
        stream.stop()
    assert time.monotonic() - told < AT_ONCE


def test_stop_works_from_a_signal_handler_of_the_thread_that_waits() -> None:
    foreign = Foreign()
    foreign.release.clear()
    server = ScriptedServer(foreign)
    with server.serving():
        stream = TaskStream(Api(server.url), "w")
        before = signal.signal(signal.SIGALRM, lambda *_: stream.stop())
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        begun = time.monotonic()
        try:
            assert list(stream) == []
        finally:
            signal.signal(signal.SIGALRM, before)
            foreign.release.set()
        assert time.monotonic() - begun < 0.3 + AT_ONCE


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [(401, {}, Unauthorized), (403, {}, Forbidden), (200, "<html>welcome</html>", UnexpectedAnswer)],
)
def test_what_the_caller_did_wrong_is_raised(status: int, body: Any, kind: type[Exception]) -> None:
    server = ScriptedServer(Foreign(Said(status, body)))
    with server.serving(), pytest.raises(kind):
        next(TaskStream(Api(server.url), "w"))
    assert len(server.asked) == 1


def test_an_outage_behind_a_proxy_is_waited_out_without_a_hot_loop() -> None:
    foreign = Foreign(Said(502, "<html>Bad Gateway</html>"))
    server = ScriptedServer(foreign)
    with server.serving(), listening(TaskStream(Api(server.url), "w")) as came:
        wait_until(lambda: len(server.asked) >= 5, "it tries again and again")
        times = server.times("POST", CLAIM)
        assert times[-1] - times[0] > 1.5  # 1/8 + 1/4 + 1/2 + 1 s, and up to twice that
        foreign.then = Said(body={"task": task()})
        wait_until(lambda: came, "the task arrives", LONGEST_PAUSE_SECONDS + 5)
    assert isinstance(came[0], ClaimedTask)


def test_retry_after_is_obeyed() -> None:
    server = ScriptedServer(Foreign(Said(503, {}, {"Retry-After": "2"})))
    with server.serving(), listening(TaskStream(Api(server.url), "w")):
        wait_until(lambda: len(server.asked) >= 2, "it tries again")
    first, second = server.times("POST", CLAIM)[:2]
    assert second - first >= 2


def test_a_stream_that_was_stopped_asks_nobody() -> None:
    server = ScriptedServer(Foreign())
    with server.serving():
        stream = TaskStream(Api(server.url), "w")
        stream.stop()
        assert list(stream) == []
        stays(lambda: not server.asked, "nobody asks", 0.3)


@pytest.mark.parametrize("interval", [0, -1, float("nan")])
def test_an_interval_that_is_none_is_refused(interval: float) -> None:
    with pytest.raises(ValueError, match="interval"):
        TaskStream(Api("http://127.0.0.1:9"), "w", interval)


def test_a_task_from_elsewhere_cannot_run() -> None:
    with pytest.raises(RuntimeError, match="does not come from a JobManager"):
        ClaimedTask.model_validate(task()).run()

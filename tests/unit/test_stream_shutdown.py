"""SIGTERM under open streams, on a real process (C16 a), and the whole walk of the reference before it."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable

import httpx

from tests.support.service import Service
from tests.support.sse import open_stream
from tests.support.waiting import wait_until

STREAMS = 20


def test_sigterm_ends_open_streams_at_once_with_no_half_frame(new_service: Callable[..., Service]):
    served = new_service(JOBS_SHUTDOWN_TIMEOUT_SECONDS="1").up()
    poll_url = served.client.post("/api/v1/compute", json={"duration": 60}).json()["poll_url"]
    texts: dict[int, str] = {}
    ended: dict[int, float] = {}
    opened = threading.Semaphore(0)

    def follow(number: int) -> None:
        with httpx.stream("GET", f"{served.url}{poll_url}/$stream", timeout=30) as response:
            chunks = response.iter_text()
            text = next(chunks)
            opened.release()
            texts[number] = text + "".join(chunks)
            ended[number] = time.monotonic()

    threads = [threading.Thread(target=follow, args=(number,)) for number in range(STREAMS)]
    for thread in threads:
        thread.start()
    for _ in threads:
        assert opened.acquire(timeout=20)
    told = time.monotonic()
    served.process.terminate()
    for thread in threads:
        thread.join(20)
    assert len(ended) == STREAMS, "no stream broke off"
    assert max(ended.values()) - told < 2.5, "streams do not wait for the job"
    wait_until(lambda: not served.process.running, "the process ends", 1 + 5)
    for text in texts.values():
        assert text.endswith("\n\n")
        for frame in text.strip().split("\n\n"):
            assert json.loads(frame.split("data: ", 1)[1])["status"] in ("pending", "running")


def test_a_second_service_resumes_the_stream_where_it_ended(new_service: Callable[..., Service]):
    service = new_service(JOBS_SHUTDOWN_TIMEOUT_SECONDS="0")
    served = service.up()
    job_id = served.client.post("/api/v1/compute", json={"duration": 60}).json()["job_id"]
    with served.stream(f"/api/v1/jobs/{job_id}/$stream") as stream:
        running = stream.until(lambda event: event.status == "running", "the job runs")
    served.process.terminate()
    wait_until(lambda: not served.process.running, "the process ends", 5)
    again = service.up()
    with open_stream(again.client, f"/api/v1/jobs/{job_id}/$stream", last_event_id=running.id) as stream:
        rest = stream.rest()
    assert [event.status for event in rest] == ["canceled"]
    with open_stream(again.client, f"/api/v1/jobs/{job_id}/$stream", last_event_id=rest[-1].id) as stream:
        assert stream.response.status_code == 204


# the signal meets the end of an object, where Python prints SystemExit and goes on
TOLD_TO_END_AS_IT_STARTS = """
import os, signal, sys
from celery_jobs.api import app, cli

class AtItsEnd:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)

def create_app(settings):
    AtItsEnd()
    return made(settings)

made, app.create_app = app.create_app, create_app
sys.argv = ["celery-jobs", "up", "--port", "0"]
cli.main()
"""


def test_a_sigterm_that_python_drops_still_ends_the_start(new_service: Callable[..., Service]):
    assert "Serving" not in new_service().python(TOLD_TO_END_AS_IT_STARTS, timeout=30)

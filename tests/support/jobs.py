"""What a client of the service does, in one word each; every answer that no test asked for fails it with the answer."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import httpx

from tests.support.sse import Event, Stream, open_stream
from tests.support.waiting import wait_until

TERMINAL = frozenset({"completed", "failed", "canceled"})
PREFIX = "/api/v1/jobs"
LOOK_SECONDS = 0.05  # each look is a request, which costs two processors of a small machine something


def good(response: httpx.Response, *statuses: int) -> httpx.Response:
    """The answer, which must have one of these statuses (by default any good one)."""
    fine = response.status_code in statuses if statuses else response.is_success
    assert fine, f"{response.request.method} {response.request.url}: {response.status_code} {response.text}"
    return response


class Jobs:
    """One API process as a client sees it."""

    def __init__(self, client: httpx.Client) -> None:
        self.client = client

    def submit(self, task: str, /, *, params: Any = None, headers: Any = None, **arguments: Any) -> str:
        """The id of a new job of a task of the sample module."""
        name = task if "." in task or task == "compute" else f"sample.{task}"
        path = f"/api/v1/tasks/{name}"
        return good(self.client.post(path, json=arguments, params=params, headers=headers), 202).json()["job_id"]

    def record(self, job_id: str) -> dict[str, Any]:
        return good(self.client.get(f"{PREFIX}/{job_id}"), 200).json()

    def status(self, job_id: str) -> str:
        return self.record(job_id)["status"]

    def result(self, job_id: str) -> dict[str, Any]:
        return good(self.client.get(f"{PREFIX}/{job_id}/$result"), 200).json()

    def list(self, **params: Any) -> list[dict[str, Any]]:
        return good(self.client.get(PREFIX, params=params), 200).json()

    def cancel(self, job_id: str, *statuses: int, **params: Any) -> httpx.Response:
        """The answer, 202 unless other statuses are named."""
        return good(self.client.post(f"{PREFIX}/{job_id}/$cancel", params=params), *(statuses or (202,)))

    def delete(self, job_id: str) -> None:
        good(self.client.delete(f"{PREFIX}/{job_id}"), 204)

    def wait(self, job_id: str, *statuses: str, timeout: float = 30.0) -> dict[str, Any]:
        """The record once it has one of these statuses; fails at once when it ended in another one."""
        wanted = statuses or tuple(TERMINAL)

        def reached() -> dict[str, Any] | None:
            record = self.record(job_id)
            if record["status"] in wanted:
                return record
            if record["status"] in TERMINAL:
                raise AssertionError(f"job {job_id} ended, but not {' or '.join(wanted)}: {record}")
            return None

        # a failure should name what was seen last, not None
        try:
            found = wait_until(reached, f"job {job_id} is {' or '.join(wanted)}", timeout, interval=LOOK_SECONDS)
        except AssertionError as error:
            error.add_note(f"record: {self.record(job_id)}")
            raise
        assert found is not None
        return found

    def stream(self, job_id: str, **options: Any) -> AbstractContextManager[Stream]:
        return open_stream(self.client, f"{PREFIX}/{job_id}/$stream", **options)

    def queue(self, name: str = "jobs") -> dict[str, Any]:
        return good(self.client.get(f"/api/v1/queues/{name}"), 200).json()

    def change_queue(self, name: str = "jobs", **change: Any) -> dict[str, Any]:
        return good(self.client.patch(f"/api/v1/queues/{name}", json=change), 200).json()

    def wait_idle(self, name: str = "jobs", timeout: float = 30.0) -> None:
        """Until nothing waits or runs in the queue."""

        def idle() -> bool:
            queue = self.queue(name)
            return queue["pending"] + queue["running"] + queue["canceling"] == 0

        try:
            wait_until(idle, f"queue {name} is idle", timeout, interval=LOOK_SECONDS)
        except AssertionError as error:
            left = [self.list(status_filter=status) for status in ("pending", "running", "canceling")]
            error.add_note(f"queue: {self.queue(name)}\nleft: {left}")
            raise


def statuses(events: list[Event]) -> list[str | None]:
    return [event.status for event in events]

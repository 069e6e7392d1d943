"""What a client of the remote-worker API does, in one word each; an answer that no test asked for fails it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from functools import cache
from typing import Any
from urllib.parse import quote, urljoin
from uuid import UUID, uuid4

import httpx
from ulid import ULID

from tests.support.jobs import good
from tests.support.strict import problem, strict

Json = dict[str, Any]

PREFIX = "/v1/joblib"
STATES = ("pending", "claimed", "running", "completed", "failed", "cancelled")
TITLES = {
    "job-not-found": "Not Found",
    "worker-not-found": "Not Found",
    "task-not-found": "Not Found",
    "schema-conflict": "Conflict",
    "invalid-task-transition": "Conflict",
    "invalid-category": "Bad Request",
}


def fresh(word: str = "room") -> str:
    """A name that no other test uses."""
    return f"{word}-{uuid4().hex[:12]}"


def ulid_of(task: str) -> str:
    """The same 128 bits as `/api/v1/jobs` spells them."""
    return str(ULID.from_uuid(UUID(task)))


def timestamp(text: str) -> float:
    """A time of an answer, which must say its offset."""
    moment = datetime.fromisoformat(text)
    assert moment.utcoffset() == timedelta(0), text
    return moment.timestamp()


def segment(text: str) -> str:
    """One part of a path."""
    return quote(text, safe="@:")


def refused(answer: httpx.Response, status: int, name: str) -> Json:
    """The body of a refusal: a problem of this API with this name, whose page can be read."""
    body = problem(answer, status)
    assert body["type"] == f"/v1/problems/{name}", body
    assert body["title"] == TITLES.get(name, body["title"])
    assert body["title"]
    assert body["detail"]
    page_exists(urljoin(str(answer.request.url), body["type"]))
    return body


@cache
def page_exists(url: str) -> None:
    page = good(httpx.get(url, timeout=30), 200)
    assert page.headers["content-type"].startswith("text/html")


class Remote:
    """One identity at one API process, in a room of its own; with a worker id it acts as that worker."""

    def __init__(
        self, client: httpx.Client, key: str | None = None, worker_id: str | None = None, room: str | None = None
    ) -> None:
        self.client = client
        self.key = key
        self.worker_id = worker_id
        self.room = room or fresh()

    def at(self, client: httpx.Client) -> Remote:
        """The same through another API process."""
        return Remote(client, self.key, self.worker_id, self.room)

    def send(
        self,
        method: str,
        path: str,
        *,
        wait: float | str | None = None,
        headers: Mapping[str, str] | None = None,
        **rest: Any,
    ) -> httpx.Response:
        """Any answer; the path without the prefix."""
        sent = {} if self.key is None else {"X-API-Key": self.key}
        sent |= {} if wait is None else {"Prefer": f"wait={wait}"}
        answer = self.client.request(method, f"{PREFIX}{path}", headers={**sent, **(headers or {})}, **rest)
        if answer.content and "json" in answer.headers.get("content-type", ""):
            strict(answer.content)
        return answer

    @property
    def me(self) -> Json:
        """What names this worker in a body; nothing where the identity is the worker."""
        return {} if self.worker_id is None else {"worker_id": self.worker_id}

    def worker(self, room: str | None = None) -> Remote:
        """An extra worker of this identity, in this room or another."""
        made = good(self.send("POST", "/workers"), 201)
        assert made.headers["location"] == f"{PREFIX}/workers/{segment(made.json()['id'])}"
        return Remote(self.client, self.key, made.json()["id"], room or self.room)

    def serving(self, name: str = "Rotate", schema: Json | None = None) -> tuple[Remote, str]:
        """An extra worker in a fresh room and the full name of the one job that it serves."""
        worker = self.worker(fresh())
        return worker, worker.register(name, schema=schema)["full_name"]

    def put(self, name: Any = "Rotate", room: str | None = None, **body: Any) -> httpx.Response:
        """Any answer to a registration."""
        body = {"category": "modifiers", "name": name, **self.me, **body}
        return self.send("PUT", f"/rooms/{segment(room or self.room)}/jobs", json=body)

    def register(self, name: str = "Rotate", *, room: str | None = None, schema: Json | None = None) -> Json:
        """The job, new or not."""
        return good(self.put(name, room, **({} if schema is None else {"schema": schema})), 200, 201).json()

    def job(self, full_name: str, room: str | None = None) -> httpx.Response:
        """Any answer to a look at a job."""
        return self.send("GET", f"/rooms/{segment(room or self.room)}/jobs/{segment(full_name)}")

    def page(self, path: str, **params: Any) -> Json:
        """One page of a list."""
        page = good(self.send("GET", path, params=params), 200).json()
        assert set(page) == {"items", "total", "limit", "offset"}
        return page

    def jobs(self, room: str | None = None, **params: Any) -> Json:
        return self.page(f"/rooms/{segment(room or self.room)}/jobs", **params)

    def tasks(self, room: str | None = None, **params: Any) -> Json:
        return self.page(f"/rooms/{segment(room or self.room)}/tasks", **params)

    def post(self, full_name: str, room: str | None = None, **options: Any) -> httpx.Response:
        """Any answer to a submission."""
        return self.send("POST", f"/rooms/{segment(room or self.room)}/tasks/{segment(full_name)}", **options)

    def submit(self, full_name: str, payload: Json | None = None, room: str | None = None) -> Json:
        """The new task."""
        return good(self.post(full_name, room, json={"payload": payload or {}}), 202).json()

    def ask(self, wait: float | str | None = None, **rest: Any) -> httpx.Response:
        """Any answer to a claim."""
        return self.send("POST", "/tasks/claim", wait=wait, json=self.me, timeout=150, **rest)

    def claim(self, wait: float | str | None = None) -> Json | None:
        """The task, or None where there is none for this worker."""
        body = good(self.ask(wait), 200).json()
        assert set(body) == {"task"}
        return body["task"]

    def claim_one(self) -> Json:
        """The task, which must be there."""
        task = self.claim()
        assert task is not None
        return task

    def look(self, task: Json | str, wait: float | str | None = None) -> httpx.Response:
        """Any answer to a look at a task."""
        return self.send("GET", f"/tasks/{task if isinstance(task, str) else task['id']}", wait=wait, timeout=150)

    def task(self, task: Json | str, wait: float | str | None = None) -> Json:
        return good(self.look(task, wait), 200).json()

    def patch(self, task: Json | str, status: Any, **fields: Any) -> httpx.Response:
        """Any answer to a report."""
        path = f"/tasks/{task if isinstance(task, str) else task['id']}"
        return self.send("PATCH", path, json={"status": status, **self.me, **fields})

    def report(self, task: Json | str, status: str, **fields: Any) -> Json:
        """The task as it is after a report that counted, with what else this worker is told."""
        return good(self.patch(task, status, **fields), 200).json()

    def at_state(self, full_name: str, status: str) -> Json:
        """A new task of this job in this state; this worker must have no older one to claim."""
        task = self.submit(full_name)
        if status in ("claimed", "running", "completed", "failed"):
            assert self.claim_one()["id"] == task["id"]
        if status in ("running", "completed", "failed"):
            self.report(task, "running")
        if status in ("completed", "failed", "cancelled"):
            self.report(task, status)
        found = self.task(task)
        assert found["status"] == status
        return found

    def beat(self, worker_id: str | None = None) -> httpx.Response:
        """Any answer to a heartbeat."""
        return self.send("PATCH", f"/workers/{segment(worker_id or self.worker_id or '')}")

    def told_to_cancel(self) -> list[str]:
        """Which tasks a heartbeat says are cancelled."""
        body = good(self.beat(), 200).json()
        assert set(body) == {"id", "last_heartbeat", "cancelled_task_ids"}
        assert body["id"] == self.worker_id
        return body["cancelled_task_ids"]

    def leave(self, worker_id: str | None = None) -> httpx.Response:
        """Any answer to the deletion of a worker."""
        return self.send("DELETE", f"/workers/{segment(worker_id or self.worker_id or '')}")

    def sweep(self) -> bool:
        """Whether it was done; not within a second of the last one."""
        body = good(self.send("POST", "/sweep"), 200).json()
        assert set(body) == {"swept"}
        return body["swept"]

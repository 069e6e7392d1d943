"""The calls of `/v1/joblib` that the SDK makes: one method each, errors raised (contract, section 8)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, TypeVar
from urllib.parse import quote

import httpx
from pydantic import BaseModel, ValidationError
from pydantic_core import to_json

from celery_jobs.client.api import ApiManager
from celery_jobs.client.errors import UnexpectedAnswer, Unreachable, problem_of

M = TypeVar("M", bound=BaseModel)
PREFIX: Final = "/v1/joblib"
REQUEST_TIMEOUT_SECONDS: Final = 10.0
CONNECT_TIMEOUT_SECONDS: Final = 5.0
NO_CONTENT: Final = 204
WAIT_SECONDS: Final = 20  # of one request that waits; shorter than what proxies allow a silent answer (60 s)
WAIT_SLACK_SECONDS: Final = 10.0  # for an answer after its wait is over


@dataclass(frozen=True, slots=True)
class Answer:
    """A good answer: its JSON, and whether the server waited as it was asked to."""

    body: Any
    waited: bool


@dataclass(frozen=True, slots=True)
class JobOffer:
    """A callable as it is registered."""

    room: str
    category: str
    name: str
    schema: dict[str, Any]

    @property
    def full_name(self) -> str:
        """`<room>:<category>:<name>`."""
        return f"{self.room}:{self.category}:{self.name}"


class _NewWorker(BaseModel):
    id: str


class Wire:
    """One server; threads may share it."""

    def __init__(self, api: ApiManager) -> None:
        self.api = api

    def new_worker(self) -> str:
        """The id of a new worker."""
        return parsed(_NewWorker, self._call("POST", "/workers").body).id

    def delete_worker(self, worker: str, timeout_seconds: float) -> None:
        """Take the worker away: what it claimed goes back, what it runs fails."""
        self._call("DELETE", f"/workers/{_part(worker)}", timeout_seconds=timeout_seconds)

    def beat(self, worker: str) -> list[str]:
        """Say that the worker lives; the tasks of its that were cancelled."""
        return cancelled_in(self._call("PATCH", f"/workers/{_part(worker)}").body)

    def offer(self, job: JobOffer, worker: str) -> None:
        """Register a callable for the worker."""
        body = {"category": job.category, "name": job.name, "schema": job.schema, "worker_id": worker}
        self._call("PUT", f"/rooms/{_part(job.room)}/jobs", body)

    def claim(self, worker: str, wait_seconds: int) -> Answer:
        """The oldest task that waits for the worker, as `{"task": …}`, null when none came in time."""
        return self._call("POST", "/tasks/claim", {"worker_id": worker}, wait_seconds=wait_seconds)

    def report(self, task: str, body: dict[str, Any], timeout_seconds: float) -> dict[str, Any]:
        """Say what became of a task; the task."""
        return self._call("PATCH", f"/tasks/{_part(task)}", body, timeout_seconds=timeout_seconds).body

    def task(self, task: str, wait_seconds: int = 0, timeout_seconds: float = REQUEST_TIMEOUT_SECONDS) -> Answer:
        """The task; with a wait, once it has ended or the wait is over."""
        path = f"/tasks/{_part(task)}"
        return self._call("GET", path, wait_seconds=wait_seconds, timeout_seconds=timeout_seconds)

    def submit(self, room: str, full_name: str, payload: Any, key: str, timeout_seconds: float) -> dict[str, Any]:
        """A new task; the same one for the same key."""
        path = f"/rooms/{_part(room)}/tasks/{_part(full_name)}"
        headers = {"Idempotency-Key": key}
        return self._call("POST", path, {"payload": payload}, headers=headers, timeout_seconds=timeout_seconds).body

    def _call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        headers: dict[str, str] | None = None,
        wait_seconds: int = 0,
        timeout_seconds: float = REQUEST_TIMEOUT_SECONDS,
    ) -> Answer:
        sent = {**self.api.get_headers(), **(headers or {})}
        if wait_seconds:
            sent["Prefer"] = f"wait={wait_seconds}"
            timeout_seconds += wait_seconds + WAIT_SLACK_SECONDS - REQUEST_TIMEOUT_SECONDS
        if body is not None:
            sent["Content-Type"] = "application/json"
        timeout = httpx.Timeout(timeout_seconds, connect=min(timeout_seconds, CONNECT_TIMEOUT_SECONDS))
        url = f"{str(self.api.base_url).rstrip('/')}{PREFIX}{path}"
        content = None if body is None else to_json(body, inf_nan_mode="constants")
        try:
            http = self.api.http
            response = http.send(http.build_request(method, url, headers=sent, content=content, timeout=timeout))
        except httpx.RequestError as error:
            raise Unreachable(f"{method} {url}: {str(error) or type(error).__name__}") from error
        return _answer(response)


def _answer(response: httpx.Response) -> Answer:
    if response.status_code >= 300:
        raise problem_of(response)
    if response.status_code == NO_CONTENT:
        return Answer(None, waited=False)
    try:
        body = response.json()
    except ValueError:
        body = None
    if not isinstance(body, dict):
        said = f"{response.status_code} {response.headers.get('content-type', 'without a type')}"
        raise UnexpectedAnswer(f"{response.request.url} answered {said}, not as a job service does; is the URL right?")
    waited = "wait" in response.headers.get("preference-applied", "").lower()
    return Answer(body, waited)  # pyright: ignore[reportUnknownArgumentType]


def cancelled_in(body: dict[str, Any]) -> list[str]:
    """The `cancelled_task_ids` of an answer."""
    return [str(task) for task in body.get("cancelled_task_ids") or ()]


def parsed(model: type[M], body: Any) -> M:
    """What an answer says; UnexpectedAnswer if it says something else."""
    try:
        return model.model_validate(body)
    except ValidationError as error:
        raise UnexpectedAnswer(f"not the answer of a job service; is the URL right? {error}") from None


def _part(text: str) -> str:
    """One part of a path, which stays one whatever is in it."""
    if text in (".", ".."):
        return text.replace(".", "%2E")  # otherwise it would lead to another path
    return quote(text, safe="@:")

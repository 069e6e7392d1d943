"""What can go wrong, one class per kind of problem, so that callers catch what they can deal with.

    ClientError
    ├── Unreachable               no answer: refused, cut, timed out                        (transient)
    ├── UnexpectedAnswer          an answer, but not from a job service
    ├── ResultNotJson             a returned value that JSON cannot hold
    └── Problem                   the server says no: status, type, title, detail, errors
        ├── InvalidCategory  InvalidRoomId                              400
        ├── Unauthorized                                                401
        ├── Forbidden                                                   403
        ├── NotFound                                                    404
        │   └── JobNotFound  TaskNotFound  WorkerNotFound
        ├── MethodNotAllowed                                            405
        ├── Conflict                                                    409
        │   └── SchemaConflict  InvalidTaskTransition
        ├── TooLarge                                                    413
        ├── ValidationFailed                                            422
        │   └── PayloadInvalid
        ├── Unavailable           503, and 502, 504 of a proxy          (transient)
        └── Internal              500                                   (transient)

What is transient may work when it is repeated; the SDK repeats what is safe to repeat before it raises.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar, Final

import httpx


class ClientError(Exception):
    """Everything that the SDK raises by itself."""

    @property
    def transient(self) -> bool:
        """True if the same request may work a little later."""
        return False

    @property
    def retry_after_seconds(self) -> float | None:
        """How long the server asks to be left alone, where it says so."""
        return None


class Unreachable(ClientError):
    """No answer; whether a request was carried out is not known."""

    @property
    def transient(self) -> bool:
        """True: it may be back soon."""
        return True


class UnexpectedAnswer(ClientError):
    """The answer is not one of a job service; is the URL right?"""


class ResultNotJson(ClientError, TypeError):
    """What a task returned cannot be written as JSON; the message names the type."""


class Problem(ClientError):
    """An error that the server names, as a problem document (RFC 9457)."""

    names: ClassVar[tuple[str, ...]] = ()  # the last part of the types that this class stands for
    statuses: ClassVar[tuple[int, ...]] = ()  # the statuses it stands for where no type is known

    def __init__(self, status: int, document: dict[str, Any], retry_after_seconds: float | None = None) -> None:
        self.status = status
        self.type = str(document.get("type") or "about:blank")
        self.title = str(document.get("title") or "")
        self.detail = str(document.get("detail") or "")
        self.errors: list[dict[str, Any]] = list(document.get("errors") or [])
        self.instance: str | None = document.get("instance")
        self._retry_after_seconds = retry_after_seconds
        super().__init__(self._text())

    def _text(self) -> str:
        text = f"{self.status} {self.detail or self.title or 'without a reason'}"
        faults = "; ".join(f"{_place(fault)}: {fault.get('msg')}" for fault in self.errors[:5])
        return f"{text} ({faults})" if faults else text

    @property
    def transient(self) -> bool:
        """True for what is the server's trouble and not the caller's fault."""
        return self.status >= 500 or self.status in (408, 425, 429)

    @property
    def retry_after_seconds(self) -> float | None:
        """The header Retry-After, in seconds."""
        return self._retry_after_seconds


class InvalidCategory(Problem):
    """The server does not allow jobs of this category."""

    names = ("invalid-category",)


class InvalidRoomId(Problem):
    """A room's name cannot hold `@` or `:`."""

    names = ("invalid-room-id",)


class Unauthorized(Problem):
    """An API key is missing or wrong."""

    names, statuses = ("unauthorized",), (401,)


class Forbidden(Problem):
    """The key is good but does not allow this; or the task is another worker's."""

    names, statuses = ("forbidden",), (403,)


class NotFound(Problem):
    """There is no such thing."""

    names, statuses = ("not-found",), (404,)


class JobNotFound(NotFound):
    """No such job, or another room's."""

    names, statuses = ("job-not-found",), ()


class TaskNotFound(NotFound):
    """No such task."""

    names, statuses = ("task-not-found",), ()


class WorkerNotFound(NotFound):
    """The worker is unknown: it was silent for too long, or the database is another one."""

    names, statuses = ("worker-not-found",), ()


class MethodNotAllowed(Problem):
    """The path does not know this method."""

    names, statuses = ("method-not-allowed",), (405,)


class Conflict(Problem):
    """It contradicts what is there."""

    names, statuses = ("conflict",), (409,)


class SchemaConflict(Conflict):
    """A job of this name is registered with another schema."""

    names, statuses = ("schema-conflict",), ()


class InvalidTaskTransition(Conflict):
    """The task's state does not allow this: it has ended, was cancelled, or nobody holds it."""

    names, statuses = ("invalid-task-transition",), ()


class TooLarge(Problem):
    """More than the server takes."""

    names, statuses = ("too-large",), (413,)


class ValidationFailed(Problem):
    """The request is not as it should be; `errors` says where."""

    names, statuses = ("validation-failed",), (422,)


class PayloadInvalid(ValidationFailed):
    """The payload does not fit the job's schema; `errors` says where."""

    names, statuses = ("payload-invalid",), ()


class Unavailable(Problem):
    """The server, or what it needs, is down."""

    names, statuses = ("unavailable",), (502, 503, 504)


class Internal(Problem):
    """The server failed."""

    names, statuses = ("internal",), (500,)


def _place(fault: dict[str, Any]) -> str:
    return ".".join(str(part) for part in fault.get("loc") or ())


_KINDS: Final[tuple[type[Problem], ...]] = (
    InvalidCategory, InvalidRoomId, Unauthorized, Forbidden, NotFound, JobNotFound, TaskNotFound, WorkerNotFound,
    MethodNotAllowed, Conflict, SchemaConflict, InvalidTaskTransition, TooLarge, ValidationFailed, PayloadInvalid,
    Unavailable, Internal,
)  # fmt: skip
_BY_NAME: Final = {name: kind for kind in _KINDS for name in kind.names}
_BY_STATUS: Final = {status: kind for kind in _KINDS for status in kind.statuses}


def problem_of(response: httpx.Response) -> ClientError:
    """The error that an answer of 300 or more stands for; what is no problem document counts by its status."""
    if response.status_code < 400:
        where = response.headers.get("location", "elsewhere")
        return UnexpectedAnswer(f"{response.request.url} answered {response.status_code} and points to {where}")
    document = _document(response)
    name = re.split("[/:]", str(document.get("type") or ""))[-1]
    kind = _BY_NAME.get(name) or _BY_STATUS.get(response.status_code, Problem)
    return kind(response.status_code, document, _seconds(response.headers.get("retry-after", "")))


def _document(response: httpx.Response) -> dict[str, Any]:
    try:
        document: Any = response.json()
    except ValueError:
        document = None
    if isinstance(document, dict):
        return document  # pyright: ignore[reportUnknownVariableType]
    return {"title": response.reason_phrase, "detail": f"{response.reason_phrase} ({response.request.url})"}


def _seconds(text: str) -> float | None:
    return float(text) if text.isascii() and text.isdigit() and len(text) < 10 else None  # the form with a date is rare

"""What is answered outside of the routes: foreign hosts and origins, too large bodies, and a server that must end."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from celery_jobs.api.problems import BAD_REQUEST, FORBIDDEN, TOO_LARGE, internal_problem, problem, unavailable

LOCAL_HOSTS: Final = frozenset({"localhost", "127.0.0.1", "[::1]", "testserver"})
_ASKS_FOR_PRIVATE_NETWORK: Final = b"access-control-request-private-network"
_CUT_OFF: Final = "The service is shutting down and could not finish this request; repeat it"
_CUT_OFF_IN_DOUBT: Final = (
    "The service is shutting down while this was being recorded: it may take effect or not; look before you repeat it"
)
_DEFAULT_PORTS: Final = {"http": "80", "https": "443"}


class BodyTooLarge(HTTPException):
    """The body is over the limit; an HTTPException, since of other errors in reading it the framework makes a 400."""

    def __init__(self, limit: int) -> None:
        super().__init__(413, f"The body is larger than {limit} bytes (JOBS_MAX_BODY_BYTES)")


class OriginGuard:
    """Keeps web pages of other sites away from a service that has no keys: their Host or Origin betrays them."""

    def __init__(self, app: ASGIApp, allowed_hosts: Collection[str], allowed_origins: Collection[str]) -> None:
        self.app = app
        self._hosts = LOCAL_HOSTS | {_without_port(host.lower()) for host in allowed_hosts}
        self._origins = frozenset(origin.lower().rstrip("/") for origin in allowed_origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse with 403, or pass on."""
        if scope["type"] == "http":
            refusal = self._refusal(scope)
            if refusal is not None:
                await problem(scope, FORBIDDEN, refusal)(scope, receive, send)
                return
        await self.app(scope, receive, send)

    def _refusal(self, scope: Scope) -> str | None:
        host = ""
        for name, value in scope["headers"]:
            if name == b"host":
                host = value.decode("latin-1").lower()
                if _without_port(host) not in self._hosts and "*" not in self._hosts:
                    return f"The host {_without_port(host)!r} is not served; name it in JOBS_ALLOWED_HOSTS"
        for name, value in scope["headers"]:
            if name == b"origin":
                origin = value.decode("latin-1").lower()
                if not self._trusts(origin, scope["scheme"], host):
                    return f"Requests from the origin {origin!r} are refused; name it in JOBS_CORS_ORIGINS"
        return None

    def _trusts(self, origin: str, scheme: str, host: str) -> bool:
        if origin in self._origins or "*" in self._origins:
            return True
        return bool(host) and _origin_key(origin) == _origin_key(f"{scheme}://{host}")


class Cors(CORSMiddleware):
    """Starlette's; but what it refuses is a problem document, and a preflight of another origin no special case.

    And caches are told of the difference in every answer, not only in those to allowed origins.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Add the headers for allowed origins."""
        headers = Headers(scope=scope) if scope["type"] == "http" else Headers()
        origin = headers.get("origin")
        if origin is None or not self.is_allowed_origin(origin):
            await self.app(scope, receive, _varying(send))
        elif scope["method"] == "OPTIONS" and "access-control-request-method" in headers:
            await self._preflight(scope, headers)(scope, receive, send)
        else:
            await self.simple_response(scope, receive, send, request_headers=headers)

    def _preflight(self, scope: Scope, headers: Headers) -> Response:
        asked = Headers(raw=[(name, value) for name, value in headers.raw if name != _ASKS_FOR_PRIVATE_NETWORK])
        answer = self.preflight_response(asked)
        if answer.status_code >= 400:
            return problem(scope, BAD_REQUEST, bytes(answer.body).decode(), headers={"Vary": "Origin"})
        if len(asked) < len(headers):  # a page of the internet that was named may reach a service on this machine
            answer.headers["Access-Control-Allow-Private-Network"] = "true"
        return answer


def _varying(send: Send) -> Send:
    async def varying(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message).add_vary_header("Origin")
        await send(message)

    return varying


class _Noting:
    """A `send` that knows whether the answer has begun."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.begun = False

    async def __call__(self, message: Message) -> None:
        self.begun = True
        await self._send(message)


class AnswerWhenCutOff:
    """Answers 503 to a request whose time ends with the server's: it cancels what is open when its patience is over."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on, and answer what was canceled before its answer began."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        noting = _Noting(send)
        try:
            await self.app(scope, receive, noting)
        except asyncio.CancelledError:
            if noting.begun:
                raise
            # answered, so the cancel ends here: the server would log it as a fault of ours and send a 500
            safe = scope["method"] in ("GET", "HEAD", "OPTIONS")
            await unavailable(scope, _CUT_OFF if safe else _CUT_OFF_IN_DOUBT)(scope, receive, send)


class Unforeseen:
    """Answers an error that nobody foresaw inside of `Cors`: the framework does it outside, where no page may read it.

    The error goes on to the framework, which logs it.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on, and answer what was not answered yet."""
        noting = _Noting(send)
        try:
            await self.app(scope, receive, noting)
        except Exception as error:
            if scope["type"] == "http" and not noting.begun:
                await (await internal_problem(Request(scope), error))(scope, receive, send)
            raise


class BodyLimit:
    """Answers 413 to a body over the limit, declared or counted while it arrives."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self.app = app
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a declared length at once; count what comes without one."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        declared = _content_length(scope)
        if declared is None:
            await self.app(scope, _counted(receive, self._limit), send)
        elif declared <= self._limit:
            await self.app(scope, receive, send)
        else:
            await self._refuse(scope, receive, send, declared)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send, declared: int) -> None:
        # a client that is still sending would see a reset connection instead of the answer
        if declared <= 16 * self._limit and b"expect" not in dict(scope["headers"]):
            while (message := await receive())["type"] == "http.request" and message.get("more_body"):
                pass
        response = problem(scope, TOO_LARGE, BodyTooLarge(self._limit).detail)
        await response(scope, receive, send)


def _counted(receive: Receive, limit: int) -> Receive:
    received = 0

    async def counting() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > limit:
            raise BodyTooLarge(limit)
        return message

    return counting


def _content_length(scope: Scope) -> int | None:
    for name, value in scope["headers"]:
        if name == b"content-length":
            return int(value) if value.isdigit() else None
    return None


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0]


def _origin_key(origin: str) -> tuple[str, str, str] | None:
    """Scheme, host and port with the default port filled in; None for what is no origin, `null` included."""
    try:
        parts = urlsplit(origin)
        port = str(parts.port or "")
    except ValueError:
        return None
    if not parts.scheme or not parts.hostname:
        return None
    return parts.scheme, parts.hostname, port or _DEFAULT_PORTS.get(parts.scheme, "")

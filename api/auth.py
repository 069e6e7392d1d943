"""API keys (contract, section 9): who calls and what they may do. Without any, everybody is `local`, an admin."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from fastapi import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from celery_jobs.api.problems import CHALLENGE, UNAUTHORIZED, Forbidden, Unauthorized, problem
from celery_jobs.records.settings import ApiKey

_CALLER: Final = "celery_jobs.caller"
PUBLIC_PATHS: Final = frozenset({"/", "/health", "/health/$stream", "/livez", "/readyz"})
PUBLIC_PREFIXES: Final = ("/static/", "/v1/problems/")
PUBLIC_POSTS: Final = frozenset({"/session", "/v1/joblib/sweep"})


@dataclass(frozen=True, slots=True)
class Caller:
    """Whom a request comes from."""

    identity: str
    admin: bool
    scopes: frozenset[str]

    def may(self, scope: str) -> bool:
        """True when this caller has the scope, or all of them."""
        return self.admin or scope in self.scopes


LOCAL: Final = Caller("local", admin=True, scopes=frozenset({"read", "submit", "cancel"}))
NOBODY: Final = Caller("", admin=False, scopes=frozenset())


class Keys:
    """The configured keys; looking one up takes the same time for every wrong key."""

    def __init__(self, keys: Mapping[str, ApiKey]) -> None:
        self._callers = [
            (_digest(key.encode()), Caller(about.identity, about.admin, frozenset(about.scopes)))
            for key, about in keys.items()
        ]

    def caller(self, key: bytes) -> Caller | None:
        """Whom the key stands for; every configured key is compared, whether or not one fits."""
        digest = _digest(key)
        found: Caller | None = None
        for known, caller in self._callers:
            if hmac.compare_digest(known, digest):
                found = caller
        return found


class KeyCheck:
    """Answers 401 to a call without a good key, apart from the public paths; put in front only where keys are set."""

    def __init__(self, app: ASGIApp, keys: Mapping[str, ApiKey]) -> None:
        self.app = app
        self._keys = Keys(keys)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse, or pass on with the caller in the scope."""
        if scope["type"] == "http":
            key = _presented(scope)
            caller = self._keys.caller(key) if key else None
            if caller is None and not is_public(scope["method"], _path(scope)):
                await problem(scope, UNAUTHORIZED, _refusal(key), headers=CHALLENGE)(scope, receive, send)
                return
            scope[_CALLER] = caller or NOBODY
        await self.app(scope, receive, send)


def caller_of(request: Request) -> Caller:
    """Who made this request."""
    return request.scope.get(_CALLER, LOCAL)


def caller_in_host(request: Request, keys: Keys | None) -> Caller:
    """Who made this request to an app that is not ours, and so has no KeyCheck in front; Unauthorized."""
    if keys is None:
        raise Unauthorized(
            "The application does not say who calls: set JOBS_API_KEYS, or override get_current_identity"
        )
    key = _presented(request.scope)
    caller = keys.caller(key) if key else None
    if caller is None:
        raise Unauthorized(_refusal(key))
    return caller


def _refusal(key: bytes) -> str:
    return "The key is not valid" if key else "This call needs a key: X-API-Key or Authorization: Bearer"


async def reader(request: Request) -> Caller:
    """The caller, who may read."""
    return _allowed(request, "read")


async def submitter(request: Request) -> Caller:
    """The caller, who may submit."""
    return _allowed(request, "submit")


async def canceler(request: Request) -> Caller:
    """The caller, who may cancel and delete."""
    return _allowed(request, "cancel")


async def admin(request: Request) -> Caller:
    """The caller, who is an admin."""
    caller = caller_of(request)
    if not caller.admin:
        raise Forbidden(caller.identity, "an admin")
    return caller


def _allowed(request: Request, scope: str) -> Caller:
    caller = caller_of(request)
    if not caller.may(scope):
        raise Forbidden(caller.identity, f"the scope {scope!r}")
    return caller


def _presented(scope: Scope) -> bytes:
    bearer = b""
    for name, value in scope["headers"]:
        if name == b"x-api-key":
            return value
        if name == b"authorization" and value[:7].lower() == b"bearer ":
            bearer = value[7:].strip()
    return bearer


def is_public(method: str, path: str) -> bool:
    """True where a call needs no key."""
    if method == "POST":
        return path in PUBLIC_POSTS
    return path in PUBLIC_PATHS or path.startswith(PUBLIC_PREFIXES)


def _path(scope: Scope) -> str:
    return scope["path"].removeprefix(scope.get("root_path", "")) or "/"


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()

"""The header `Prefer` (RFC 7240): what a client would like, as far as this service knows it. Nothing here is an error.

Only the first instance of a preference counts; an odd value makes it as if it were not there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Final

from fastapi import Depends, Header, Request

_ELEMENT: Final = re.compile(r'(?:[^,"]|"(?:[^"\\]|\\.)*"?)+')  # up to a comma outside of quotes
_LONGEST: Final = 4096  # what no client means to say is not read
_MOST_DIGITS: Final = 9
DESCRIPTION: Final = "`wait=N`: answer when the job has ended, at the latest after N seconds (RFC 7240)."


@dataclass(frozen=True, slots=True)
class Preferences:
    """What the client prefers; `wait_seconds` is None when it did not say so, or said something odd."""

    respond_async: bool = False
    wait_seconds: int | None = None

    def applied(self, *, accepted: bool = False, waited: bool = False) -> dict[str, str]:
        """The header that says which preferences were honoured; empty when none was."""
        honoured = ["respond-async"] if self.respond_async and accepted else []
        honoured += ["wait"] if waited else []
        return {"Preference-Applied": ", ".join(honoured)} if honoured else {}


def preferences(headers: Iterable[str]) -> Preferences:
    """What these `Prefer` headers ask for, together."""
    found: dict[str, str] = {}
    for element in _ELEMENT.findall(",".join(headers)[:_LONGEST]):
        name, _, value = element.partition(";")[0].partition("=")
        found.setdefault(name.strip().lower(), value.strip())
    return Preferences("respond-async" in found, _seconds(found.get("wait", "")))


def preferences_of(request: Request) -> Preferences:
    """The preferences of a request."""
    headers = request.headers.getlist("prefer")
    return preferences(headers) if headers else _NONE


async def _wanted(
    request: Request, prefer: Annotated[str | None, Header(alias="Prefer", description=DESCRIPTION)] = None
) -> Preferences:
    return preferences_of(request)  # the parameter tells OpenAPI alone: it holds the last of several headers


PreferDep = Annotated[Preferences, Depends(_wanted)]
_NONE: Final = Preferences()


def _seconds(value: str) -> int | None:
    if len(value) > 1 and value[0] == value[-1] == '"':
        value = value[1:-1]
    if not (value.isascii() and value.isdigit()):
        return None
    return int(value) if len(value) <= _MOST_DIGITS else 10**_MOST_DIGITS

"""Query parameters: each once, but those that may be repeated; to take the last of several would hide a mistake."""

from __future__ import annotations

from collections import Counter
from typing import Final

from fastapi import Depends, Request
from fastapi.exceptions import RequestValidationError
from starlette.datastructures import QueryParams

_REPEATABLE: Final = "tag"


def demand_once(query: QueryParams) -> None:
    """422 for a parameter that stands there twice."""
    twice = [name for name, count in Counter(name for name, _ in query.multi_items()).items() if count > 1]
    faults = [
        {"type": "repeated", "loc": ("query", name), "msg": "Give it once"} for name in twice if name != _REPEATABLE
    ]
    if faults:
        raise RequestValidationError(faults)


async def _each_once(request: Request) -> None:
    demand_once(request.query_params)


EachOnce: Final = Depends(_each_once)

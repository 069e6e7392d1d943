"""Pages of a list: the cursor, which only this service reads, and the address of the next page (RFC 8288)."""

from __future__ import annotations

import base64
import re
from typing import Final
from urllib.parse import urlencode

from fastapi import Request

from celery_jobs.records.errors import InvalidCursor

_PLACE: Final = re.compile(r"below:([1-9][0-9]{0,59})")


def place(cursor: str | None, places: int) -> int | None:
    """Where a cursor points in a list with so many places; None for the beginning, InvalidCursor for what is none."""
    if cursor is None:
        return None
    try:
        text = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode("ascii")
    except ValueError:
        raise InvalidCursor(cursor) from None
    match = _PLACE.fullmatch(text)
    if match is None or int(match[1]) >= places or _cursor(int(match[1])) != cursor:
        raise InvalidCursor(cursor)
    return int(match[1])


def next_link(request: Request, below: int | None) -> dict[str, str]:
    """The `Link` header that leads to the next page of this list; none after the last."""
    if below is None:
        return {}
    kept = [(name, value) for name, value in request.query_params.multi_items() if name != "cursor"]
    path = f"{request.scope.get('root_path', '')}{request.app.state.jobs_prefix}"
    return {"Link": f'<{path}?{urlencode([*kept, ("cursor", _cursor(below))])}>; rel="next"'}


def _cursor(below: int) -> str:
    return base64.urlsafe_b64encode(b"below:%d" % below).rstrip(b"=").decode()

"""The process that does what may take long: `python -m celery_jobs.api.payloads.child`, started by checker.py.

Three lines in, a schema, a payload or nothing, and what to do; one line out. It ends by itself when one takes too long,
and when nobody is there to ask any more.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable
from typing import Any, Final

from pydantic_core import from_json, to_json

from celery_jobs.api.payloads.check import SchemaUnusable, check_payload, check_schema

LONGEST_SECONDS: Final = 2.0  # of processor time


def _schema(schema_json: str, _payload: str) -> Any:
    try:
        check_schema(schema_json)
    except SchemaUnusable as error:
        return str(error)
    return None


def _payload(schema_json: str, payload: str) -> Any:
    return check_payload(schema_json, from_json(payload))


WORK: Final[dict[str, Callable[[str, str], Any]]] = {"schema": _schema, "payload": _payload}


def main() -> None:
    """Until the end of the input."""
    with contextlib.suppress(OSError):
        os.nice(5)  # short requests go first
    lines = iter(sys.stdin.buffer.readline, b"")
    for what in lines:
        schema_json, payload = next(lines, b""), next(lines, b"")
        signal.setitimer(signal.ITIMER_PROF, LONGEST_SECONDS)  # whose signal ends the process
        answer = WORK[what.decode().strip()](schema_json.decode(), payload.decode())
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.buffer.write(to_json(answer) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()

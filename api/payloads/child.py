"""The process that does what may take long: `python -m celery_jobs.api.payloads.child`, started by checker.py.

Three lines in: what to do, a schema, and a payload or nothing. One line out, or two where a payload does not fit: that
it does not, and in what. It ends by itself when one question takes too long, and when nobody asks any more.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, Final

from pydantic_core import from_json, to_json

from celery_jobs.api.payloads import check

LONGEST_SECONDS: Final = 2.0  # of processor time
MOST_MEMORY_GB: Final = 1
MISFIT: Final = "misfit"

_validator = lru_cache(maxsize=4)(check.validator)  # a large one may take 30 MB


def _schema(schema_json: str, _payload: str) -> Iterator[Any]:
    try:
        _validator(schema_json)
    except check.SchemaUnusable as error:
        yield str(error)
    else:
        yield None


def _payload(schema_json: str, payload_json: str) -> Iterator[Any]:
    compiled, payload = _validator(schema_json), from_json(payload_json)
    if check.fits(compiled, payload):
        yield []
    else:
        yield MISFIT
        yield check.faults(compiled, payload)


WORK: Final[dict[str, Callable[[str, str], Iterator[Any]]]] = {"schema": _schema, "payload": _payload}


def main() -> None:
    """Until the end of the input."""
    # whoever started it may have signals ignored or blocked
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGPROF})
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY_GB << 30, MOST_MEMORY_GB << 30))
    with contextlib.suppress(OSError):
        os.nice(5)  # short requests go first
    lines = iter(sys.stdin.buffer.readline, b"")
    for what in lines:
        schema_json, payload = next(lines, b""), next(lines, b"")
        signal.setitimer(signal.ITIMER_PROF, LONGEST_SECONDS)  # whose signal ends the process
        for answer in WORK[what.decode().strip()](schema_json.decode(), payload.decode()):
            sys.stdout.buffer.write(to_json(answer) + b"\n")
            sys.stdout.buffer.flush()
        signal.setitimer(signal.ITIMER_PROF, 0)


if __name__ == "__main__":
    main()

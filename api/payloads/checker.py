"""Checks that the event loop can afford are made by it; all others by a process beside it, one at a time."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import signal
import subprocess
import sys
from functools import lru_cache
from typing import Any, Final

from pydantic_core import from_json

from celery_jobs.api.payloads import check
from celery_jobs.api.payloads.check import Fault, SchemaUnusable
from celery_jobs.api.payloads.child import LONGEST_SECONDS, MISFIT, MOST_MEMORY_GB
from celery_jobs.api.payloads.effort import is_light, is_named_soon
from celery_jobs.records.errors import ChecksBusy

_COMMAND: Final = ("-P", "-m", "celery_jobs.api.payloads.child")  # -P: not what happens to lie in the working folder
_LONGEST_ANSWER: Final = 1 << 24
# together less than clients wait for an answer
_TURN_SECONDS: Final = 3.0
_ANSWER_SECONDS: Final = 5.0
_MOST_REMEMBERED: Final = 256
_TOO_SLOW: Final = f"checking it takes more than {LONGEST_SECONDS:g} s or {MOST_MEMORY_GB} GB"
_NAMELESS: Final = f"it does not fit; what is wrong could not be named in {LONGEST_SECONDS:g} s, or was interrupted"
_log = logging.getLogger("celery_jobs.payloads")


class _TooMuchError(Exception):
    pass


class Checker:
    """One for each process and event loop."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self._turn = asyncio.Lock()
        self._closed = False
        self._validator = lru_cache(maxsize=256)(check.validator)
        self._too_much: dict[bytes, None] = {}  # questions, which are not tried again

    async def check_schema(self, schema_json: str) -> None:
        """SchemaUnusable unless payloads can be checked against it; ChecksBusy."""
        if is_light(schema_json):
            self._validator(schema_json)
            return
        try:
            refusal = await self._ask("schema", schema_json)
        except _TooMuchError:
            refusal = f"{_TOO_SLOW}; make it simpler"
        if refusal is not None:
            raise SchemaUnusable(refusal)

    async def check_payload(self, schema_json: str, payload: dict[str, Any], payload_json: str) -> list[Fault]:
        """What is wrong with it, field by field; `payload_json` is the same as text. ChecksBusy."""
        if is_light(schema_json, len(payload_json)):
            compiled = self._validator(schema_json)
            if check.fits(compiled, payload):
                return []
            if is_named_soon(schema_json, len(payload_json)):
                return check.faults(compiled, payload)
        try:
            found = await self._ask("payload", schema_json, payload_json)
        except _TooMuchError:
            return [((), f"{_TOO_SLOW} against the job's schema; make it smaller, or the schema simpler", "too_slow")]
        return [((), _NAMELESS, "schema")] if found == MISFIT else found

    def close(self) -> None:
        """The service stops: end the process, if there is one, and start none any more."""
        self._closed = True
        self._end()

    def _end(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            child.wait()

    async def _ask(self, what: str, schema_json: str, payload_json: str = "") -> Any:
        question = f"{what}\n{schema_json}\n{payload_json}\n".encode()
        key = hashlib.sha256(question).digest()
        if key in self._too_much:
            raise _TooMuchError
        try:
            async with asyncio.timeout(_TURN_SECONDS):
                await self._turn.acquire()
        except TimeoutError:
            raise ChecksBusy from None
        try:
            return await self._answer(question)
        except _TooMuchError:
            while len(self._too_much) >= _MOST_REMEMBERED:
                del self._too_much[next(iter(self._too_much))]
            self._too_much[key] = None
            raise
        finally:
            self._turn.release()

    async def _answer(self, question: bytes) -> Any:
        try:
            child = await self._living()
            answer = await asyncio.wait_for(asyncio.to_thread(_talk, child, question), _ANSWER_SECONDS)
            if answer == _MISFIT_LINE:
                self._end()  # it ends over the naming of faults
            if answer.endswith(b"\n"):
                return from_json(answer)
            code = child.wait(1)
        except (OSError, TimeoutError, ValueError, subprocess.TimeoutExpired) as error:
            _log.warning("the process that checks large payloads does not answer: %r", error)
            code = -signal.SIGKILL
        except BaseException:
            self._end()  # what it answers is for nobody
            raise
        self._end()
        if code == -signal.SIGKILL:  # by us, or by whoever needs the memory
            raise ChecksBusy
        if code != -signal.SIGPROF:
            _log.warning("the process that checks large payloads ended with %s over one", code)
        raise _TooMuchError

    async def _living(self) -> subprocess.Popen[bytes]:
        if self._child is None or self._child.poll() is not None:
            self._child = await asyncio.to_thread(_start)
        if self._closed:
            self._end()
            raise ChecksBusy
        return self._child


def _start() -> subprocess.Popen[bytes]:
    # a session of its own: Ctrl-C is for the service, which ends it
    command = (sys.executable, *_COMMAND)
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)


def _talk(child: subprocess.Popen[bytes], question: bytes) -> bytes:
    """The last of its answers; nothing when it ended without one, such as by `close`."""
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(question)
    child.stdin.flush()
    answer = child.stdout.readline(_LONGEST_ANSWER)
    return (child.stdout.readline(_LONGEST_ANSWER) or answer) if answer == _MISFIT_LINE else answer


_MISFIT_LINE: Final = f'"{MISFIT}"\n'.encode()

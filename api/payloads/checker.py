"""Checks that the event loop can afford are made by it; all others by a process beside it, one at a time."""

from __future__ import annotations

import asyncio
import logging
import signal
import subprocess
import sys
from typing import Any, Final

from pydantic_core import from_json

from celery_jobs.api.payloads import check
from celery_jobs.api.payloads.check import Fault, SchemaUnusable
from celery_jobs.api.payloads.child import LONGEST_SECONDS
from celery_jobs.api.payloads.effort import is_light
from celery_jobs.records.errors import ChecksBusy

_COMMAND: Final = ("-P", "-m", "celery_jobs.api.payloads.child")  # -P: not what happens to lie in the working folder
_LONGEST_ANSWER: Final = 1 << 24
_PATIENCE_SECONDS: Final = 10.0
_TOO_SLOW: Final = f"checking it takes more than {LONGEST_SECONDS:g} s"
_log = logging.getLogger("celery_jobs.payloads")


class _TookTooLong(Exception):
    pass


class Checker:
    """One for each process and event loop."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self._turn = asyncio.Lock()
        self._closed = False

    async def check_schema(self, schema_json: str) -> None:
        """SchemaUnusable unless payloads can be checked against it; ChecksBusy."""
        if is_light(schema_json):
            check.check_schema(schema_json)
            return
        try:
            refusal = await self._ask("schema", schema_json, "")
        except _TookTooLong:
            refusal = f"{_TOO_SLOW}; make it simpler"
        if refusal is not None:
            raise SchemaUnusable(refusal)

    async def check_payload(self, schema_json: str, payload: dict[str, Any], payload_json: str) -> list[Fault]:
        """What is wrong with it, field by field; `payload_json` is the same as text. ChecksBusy."""
        if is_light(schema_json, len(payload_json)):
            return check.check_payload(schema_json, payload)
        try:
            return await self._ask("payload", schema_json, payload_json)
        except _TookTooLong:
            return [((), f"{_TOO_SLOW} against the job's schema; make it smaller, or the schema simpler", "too_slow")]

    def close(self) -> None:
        """The service stops: end the process, if there is one, and start none any more."""
        self._closed = True
        self._end()

    def _end(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            child.wait()

    async def _ask(self, *lines: str) -> Any:
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                await self._turn.acquire()
        except TimeoutError:
            raise ChecksBusy from None
        try:
            return await self._answer("".join(f"{line}\n" for line in lines).encode())
        finally:
            self._turn.release()

    async def _answer(self, question: bytes) -> Any:
        try:
            child = await self._living()
            answer = await asyncio.wait_for(asyncio.to_thread(_talk, child, question), _PATIENCE_SECONDS)
            if answer.endswith(b"\n"):
                return from_json(answer)
            ended = child.wait(1) if not answer else "an endless answer"
        except (OSError, TimeoutError, ValueError, subprocess.TimeoutExpired) as error:
            ended = error
        except BaseException:
            self._end()  # what it answers is for nobody
            raise
        self._end()
        if ended == -signal.SIGPROF:
            raise _TookTooLong
        if not self._closed:
            _log.warning("the process that checks large payloads did not answer: %r", ended)
        raise ChecksBusy

    async def _living(self) -> subprocess.Popen[bytes]:
        if self._closed:
            raise ChecksBusy
        if self._child is None or self._child.poll() is not None:
            self._child = await asyncio.to_thread(_start)
        return self._child


def _start() -> subprocess.Popen[bytes]:
    # a session of its own: Ctrl-C is for the service, which ends it
    command = (sys.executable, *_COMMAND)
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)


def _talk(child: subprocess.Popen[bytes], question: bytes) -> bytes:
    """Its answer; nothing when it has ended, such as by `close`."""
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(question)
    child.stdin.flush()
    return child.stdout.readline(_LONGEST_ANSWER)

"""One call at a time on a kept connection of an event loop, with the moment in which its answer was whole."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Mapping
from typing import cast

from benchmarks.clients.wire import body_of, complete, request_bytes, status_of

REMOTE = "/v1/joblib"
JOB = {"category": "modifiers", "name": "Rotate"}
SUBMIT = f"{REMOTE}/rooms/bench/tasks/@global:modifiers:Rotate"
PAYLOAD = '{"payload": {"angle": 90.0}}'
RUNNING, COMPLETED = ('{"status": "running", "worker_id": "%s"}', '{"status": "completed", "worker_id": "%s"}')
_ID = re.compile(rb'"id": ?"([^"]+)"')


def id_in(body: bytes) -> str:
    """The first id in an answer; empty where it tells of none."""
    found = _ID.search(body)
    return found[1].decode() if found else ""


class Caller(asyncio.Protocol):
    """A connection; AssertionError when an answer is no success."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._data = b""
        self._transport: asyncio.Transport
        self._answer: asyncio.Future[tuple[float, bytes]]

    @classmethod
    async def connected(cls, port: int) -> Caller:
        """A new one."""
        _, made = await asyncio.get_running_loop().create_connection(lambda: cls(port), "127.0.0.1", port)
        return made

    async def call(
        self, method: str, path: str, body: str = "", headers: Mapping[str, str] | None = None
    ) -> tuple[float, bytes]:
        """When the answer was whole (perf_counter), and its body."""
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request_bytes(self.port, path, body, method, headers))
        arrived, data = await self._answer
        if status_of(data) >= 300:
            raise AssertionError(f"{method} {path} was answered {data.decode()}")
        return arrived, body_of(data)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It is open."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by its class

    def data_received(self, data: bytes) -> None:
        """A piece of the answer."""
        arrived = time.perf_counter()
        self._data += data
        if complete(self._data):
            data, self._data = self._data, b""
            self._answer.set_result((arrived, data))

    def connection_lost(self, exc: Exception | None) -> None:
        """The server closes what rests too long; nobody may wait for an answer then."""
        if hasattr(self, "_answer") and not self._answer.done():
            self._answer.set_exception(ConnectionError("the server closed the connection"))

    def close(self) -> None:
        """Close it."""
        self._transport.close()


async def new_worker(caller: Caller) -> str:
    """The id of a worker of its own that serves the job."""
    worker_id = id_in((await caller.call("POST", f"{REMOTE}/workers"))[1])
    serves = f'{{"category": "{JOB["category"]}", "name": "{JOB["name"]}", "worker_id": "{worker_id}"}}'
    await caller.call("PUT", f"{REMOTE}/rooms/@global/jobs", serves)
    return worker_id

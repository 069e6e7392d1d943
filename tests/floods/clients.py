"""Many requests over a few kept connections, as fast as they are answered."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.clients.wire import header

_LONGEST_HEAD = 1 << 16


@dataclass(frozen=True, slots=True)
class Answer:
    """What the service said, and after how long."""

    status: int
    body: bytes
    seconds: float

    def json(self) -> Any:
        """Its body."""
        return json.loads(self.body)


Follow = Callable[[Answer], bytes | None]


def many(port: int, requests: Iterable[bytes], connections: int, follow: Follow | None = None) -> list[Answer]:
    """The answers, in the order in which they came; `follow` makes one more request out of each of the first."""
    return asyncio.run(_many(port, iter(requests), connections, follow))


async def _many(port: int, requests: Iterator[bytes], connections: int, follow: Follow | None) -> list[Answer]:
    answers: list[Answer] = []
    async with asyncio.TaskGroup() as group:
        for _ in range(connections):
            group.create_task(_connection(port, requests, answers, follow))
    return answers


async def _connection(port: int, requests: Iterator[bytes], answers: list[Answer], follow: Follow | None) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=_LONGEST_HEAD)
    for request in requests:
        answer = await _ask(reader, writer, request)
        answers.append(answer)
        following = follow(answer) if follow else None
        if following is not None:
            answers.append(await _ask(reader, writer, following))
    writer.close()


async def _ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> Answer:
    began = time.perf_counter()
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    length = header(head, b"content-length")
    body = await reader.readexactly(int(length)) if length else b""
    return Answer(int(head[9:12]), body, time.perf_counter() - began)


def statuses(answers: Iterable[Answer]) -> dict[int, int]:
    """How many of each."""
    return dict(Counter(answer.status for answer in answers))

"""An open stream on the wire: headers, frames, comments, and every way in which it ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from dataclasses import replace
from typing import Any

import pytest
from starlette.responses import Response

from celery_jobs.api.health import HealthWatch
from celery_jobs.api.stream import health as health_module
from celery_jobs.api.stream import response as response_module
from celery_jobs.api.stream.health import HealthFrames
from celery_jobs.api.stream.hub import Hub
from celery_jobs.api.stream.response import EventStream, open_job_stream
from celery_jobs.records.errors import DatabaseUnavailable, JobNotFound, ShuttingDown
from celery_jobs.records.ids import JobId
from celery_jobs.records.record import StreamRow
from tests.support.waiting import wait_until_async
from tests.unit.test_stream_frame import lived, pending_row

SOON = 5.0
JOB = pending_row().id


class Rows:
    """The rows that a stream finds when it opens."""

    def __init__(self, *rows: StreamRow, error: Exception | None = None) -> None:
        self._rows = {row.id: row for row in rows}
        self._error = error

    async def rows(self, ids: Collection[JobId]) -> dict[JobId, StreamRow]:
        if self._error is not None:
            raise self._error
        return {job_id: self._rows[job_id] for job_id in ids if job_id in self._rows}

    async def changed_since(self, mark: Any, ids: Collection[JobId]) -> tuple[Collection[StreamRow], Any]:
        return [], 0

    def on_hint(self, callback: Callable[[set[JobId]], None]) -> None:
        return None


class Client:
    """The other end of one ASGI call."""

    def __init__(self, response: Response) -> None:
        self.sent: list[dict[str, Any]] = []
        self.refuses = False
        self._left = asyncio.Event()
        self._asked = False
        self.call = asyncio.create_task(response({"type": "http"}, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if self.refuses:
            raise OSError("the connection is closed")
        self.sent.append(message)

    def leave(self) -> None:
        self._left.set()

    @property
    def chunks(self) -> list[bytes]:
        return [message["body"] for message in self.sent[1:] if message["body"]]

    async def got(self, count: int) -> list[bytes]:
        async def enough() -> bool:
            return len(self.chunks) >= count

        await wait_until_async(enough, f"{count} chunks arrive", SOON)
        return self.chunks


@pytest.fixture
async def hub() -> AsyncIterator[Hub]:
    hub = Hub()
    yield hub
    assert hub.open_streams() == 0, "every stream left the hub"


async def opened(hub: Hub, row: StreamRow, last_event_id: str | None = None) -> Client:
    return Client(await open_job_stream(hub, Rows(row), row.id, 0.5, last_event_id))


async def test_headers_and_the_present_state_come_at_once_and_the_end_ends_it(hub: Hub):
    client = await opened(hub, lived("start", "complete").now)
    await asyncio.wait_for(client.call, SOON)
    assert client.sent[0] == {
        "type": "http.response.start",
        "status": 200,
        "headers": [
            (b"content-type", b"text/event-stream"),
            (b"cache-control", b"no-cache"),
            (b"connection", b"keep-alive"),
            (b"x-accel-buffering", b"no"),
        ],
    }
    assert [chunk.split(b"\n")[0] for chunk in client.chunks] == [b"id: 1-4-0"]
    assert [message["more_body"] for message in client.sent[1:]] == [False]  # the end is one write


async def test_each_change_is_sent_until_the_end(hub: Hub):
    life = lived("start", "progress", "complete")
    client = await opened(hub, life.rows[0])
    await client.got(1)
    for row in life.rows[1:]:
        hub.publish(row)
        await client.got(row.version + 1)
    await asyncio.wait_for(client.call, SOON)
    assert [chunk.split(b"\n")[0] for chunk in client.chunks] == [
        b"id: 0-0-0",
        b"id: 1-1-0",
        b"id: 1-1-1",
        b"id: 1-4-0",
    ]


async def test_a_change_between_subscribing_and_reading_is_not_sent_twice(hub: Hub):
    life = lived("start")
    client = await opened(hub, life.now)
    hub.publish(life.rows[0])
    hub.publish(life.now)
    await asyncio.sleep(0.1)
    assert len(client.chunks) == 1
    hub.vanish(JOB)
    await asyncio.wait_for(client.call, SOON)
    assert client.chunks[1] == b'id: 1-5-0\ndata: {"status": "deleted"}\n\n'


async def test_silence_is_broken_by_comments(hub: Hub, monkeypatch: pytest.MonkeyPatch):
    assert response_module.SILENCE_SECONDS < 15
    monkeypatch.setattr(response_module, "SILENCE_SECONDS", 0.05)
    client = await opened(hub, lived("start").now)
    assert (await client.got(3))[1:3] == [b": keep-alive\n\n"] * 2
    client.leave()
    await asyncio.wait_for(client.call, SOON)


async def test_a_resumed_stream_with_nothing_missed_sends_a_comment_at_once(hub: Hub):
    client = await opened(hub, lived("start").now, "1-1-0")
    assert await client.got(1) == [b": keep-alive\n\n"]
    client.leave()
    await asyncio.wait_for(client.call, SOON)


async def test_after_the_terminal_event_there_is_nothing_to_come(hub: Hub):
    response = await open_job_stream(hub, Rows(lived("start", "complete").now), JOB, 0.5, "1-4-0")
    assert response.status_code == 204


async def test_a_client_that_leaves_takes_the_stream_along(hub: Hub):
    client = await opened(hub, lived("start").now)
    await client.got(1)
    assert hub.open_streams() == 1
    client.leave()
    await asyncio.wait_for(client.call, SOON)


async def test_a_connection_that_breaks_while_sending_is_no_error(hub: Hub):
    life = lived("start", "progress")
    client = await opened(hub, life.rows[1])
    await client.got(1)
    client.refuses = True
    hub.publish(life.now)
    await asyncio.wait_for(client.call, SOON)


async def test_closing_the_hub_ends_streams_with_whole_frames(hub: Hub):
    clients = [await opened(hub, lived("start").now) for _ in range(5)]
    for client in clients:
        await client.got(1)
    hub.close()
    for client in clients:
        await asyncio.wait_for(client.call, SOON)
        assert all(chunk.endswith(b"\n\n") for chunk in client.chunks)
        assert client.sent[-1]["more_body"] is False
    with pytest.raises(ShuttingDown):
        await opened(hub, lived("start").now)


@pytest.mark.parametrize(
    ("source", "error"),
    [
        (Rows(), JobNotFound),
        (Rows(replace(pending_row(), deleted=True)), JobNotFound),
        (Rows(error=DatabaseUnavailable("down")), DatabaseUnavailable),
    ],
)
async def test_what_cannot_be_streamed_is_told_before_the_stream_opens(hub: Hub, source: Rows, error: type[Exception]):
    with pytest.raises(error):
        await open_job_stream(hub, source, JOB, 0.5, None)


class Healthy:
    """A check that passes."""

    ok = True
    detail = "nel \x85 and ls \u2028"


async def health_stream(poll_interval: float, closing: asyncio.Event) -> Client:
    async def checks() -> dict[str, Healthy]:
        return {"database": Healthy()}

    return Client(EventStream(HealthFrames(HealthWatch(checks), poll_interval, closing)))


async def test_health_is_told_at_once_and_after_each_interval_until_the_service_stops():
    closing = asyncio.Event()
    client = await health_stream(0.05, closing)
    for chunk in await client.got(3):
        assert chunk.startswith(b'data: {"status":"healthy"')
        assert len(chunk.decode().splitlines()) == 2
    closing.set()
    await asyncio.wait_for(client.call, SOON)


async def test_a_long_health_interval_is_filled_with_comments(monkeypatch: pytest.MonkeyPatch):
    assert health_module.SILENCE_SECONDS < 15
    monkeypatch.setattr(health_module, "SILENCE_SECONDS", 0.05)
    client = await health_stream(60, asyncio.Event())
    assert (await client.got(3))[1:3] == [b": keep-alive\n\n"] * 2
    client.leave()
    await asyncio.wait_for(client.call, SOON)

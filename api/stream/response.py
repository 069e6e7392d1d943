"""An open stream as an ASGI response: the headers, the frames as they come, a comment in silence, a clean end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any, Final, Protocol

from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from celery_jobs.api.stream.frame import KEEP_ALIVE, Event, Key, Rank, events_after, gone, is_over, opening
from celery_jobs.api.stream.hub import Hub, News, Subscription
from celery_jobs.api.stream.shared import Rows, first_row
from celery_jobs.records.ids import JobId
from celery_jobs.records.record import StreamRow

EVENT_STREAM: Final[dict[int | str, dict[str, Any]]] = {
    200: {"description": "Server-Sent Events", "content": {"text/event-stream": {"schema": {"type": "string"}}}}
}
SILENCE_SECONDS: Final = 12.0  # the contract allows 15 s between two signs of life
_HEADERS: Final = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache"),
    (b"connection", b"keep-alive"),
    (b"x-accel-buffering", b"no"),
]


class Frames(Protocol):
    """Where the bytes of a stream come from."""

    over: bool  # what was given last was the end, which then goes out as one write

    def frames(self) -> AsyncIterator[bytes]:
        """The frames, each whole; ends when the stream is over."""
        ...

    def close(self) -> None:
        """End `frames` at its next step; doing it twice is fine."""
        ...


class EventStream(Response):
    """Sends frames until they end, the client leaves or the service stops; each chunk is a whole number of frames."""

    media_type = "text/event-stream"
    open = 0  # in this process, for the metrics

    def __init__(self, source: Frames) -> None:
        super().__init__()
        self.raw_headers = list(_HEADERS)
        self._source = source

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Speak ASGI; a client that left is no error."""
        listener = asyncio.create_task(close_when_client_leaves(receive, self._source.close))
        EventStream.open += 1
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            more = True
            async for chunk in self._source.frames():
                more = not self._source.over
                await send({"type": "http.response.body", "body": chunk, "more_body": more})
            if more:
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        except OSError:
            pass
        finally:
            EventStream.open -= 1
            listener.cancel()
            self._source.close()


async def close_when_client_leaves(receive: Receive, close: Callable[[], None]) -> None:
    """Call `close` when the client has gone; whatever else it sends is not looked at."""
    with contextlib.suppress(OSError, HTTPException):  # a body over the limit, which nothing here needs
        while (await receive())["type"] != "http.disconnect":
            pass
    close()


class JobFrames:
    """The frames of one job's stream."""

    def __init__(self, subscription: Subscription, row: StreamRow, last_event_id: str | None) -> None:
        self._subscription = subscription
        self._position, self._missed = opening(row, last_event_id)
        self.over = self._position.rank >= Rank.ended

    async def frames(self) -> AsyncIterator[bytes]:
        """What was missed, then each change; a comment at once when nothing was, so that the headers go out."""
        yield b"".join(event.frame for event in self._missed) or KEEP_ALIVE
        while not self.over:
            news = await self._subscription.next(SILENCE_SECONDS)
            if news is News.closed:
                return
            if news is News.quiet:
                yield KEEP_ALIVE
            else:
                # a version without anything to see still ends the silence that proxies count
                yield b"".join(event.frame for event in self._events(news)) or KEEP_ALIVE

    def close(self) -> None:
        """Leave the hub."""
        self._subscription.close()

    def _events(self, news: StreamRow | News) -> list[Event]:
        events = _rendered(news, self._position) if isinstance(news, StreamRow) else [gone(self._position)]
        if events:
            self._position = events[-1].key
            self.over = events[-1].last
        return events


_MOST_RENDERED: Final = 16
_kept: dict[tuple[int, Key], tuple[StreamRow, list[Event]]] = {}


def _rendered(row: StreamRow, position: Key) -> list[Event]:
    """The events after `position`; written once for all who are handed this row and stand at the same place."""
    kept = _kept.get((id(row), position))
    if kept is None:
        if len(_kept) >= _MOST_RENDERED:
            _kept.clear()
        kept = _kept[id(row), position] = row, events_after(row, position)  # the row kept alive, its id is its own
    return kept[1]


async def open_job_stream(
    hub: Hub,
    source: Rows,
    job_id: JobId,
    poll_interval: float,
    last_event_id: str | None,
) -> Response:
    """The stream of a job, or 204 after its end; JobNotFound comes before anything is sent."""
    subscription = hub.subscribe(job_id, poll_interval)
    try:
        row = await first_row(source, subscription)
        if not is_over(row, last_event_id):
            return EventStream(JobFrames(subscription, row, last_event_id))
    except BaseException:
        subscription.close()
        raise
    subscription.close()
    return Response(status_code=204)

"""Reading server-sent events as a client does: line by line, with a deadline."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx

# A stream says something at least every 15 s, so a longer silence is a fault.
SILENCE_SECONDS = 20.0


@dataclass(frozen=True)
class Event:
    """One event with its JSON, or one comment (then `data` is None)."""

    id: str | None = None
    data: dict[str, Any] | None = None
    comment: str | None = None
    name: str | None = None

    @property
    def status(self) -> str | None:
        """The word that most tests look at."""
        return None if self.data is None else self.data.get("status")


def parse(lines: Iterable[str]) -> Iterator[Event]:
    """Lines without their ends to events; an event that the end of the stream cuts off is dropped, as browsers do."""
    fields: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if line.startswith(":"):
            yield Event(comment=value)
        elif line:
            fields[name] = f"{fields[name]}\n{value}" if name == "data" and name in fields else value
        else:
            if "data" in fields:
                yield Event(fields.get("id"), json.loads(fields["data"]), name=fields.get("event"))
            fields = {}


class Stream:
    """An open stream: headers are there, events are read one after the other."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self.seen: list[Event] = []
        self._events = parse(response.iter_lines())

    def __iter__(self) -> Iterator[Event]:
        """Every event and comment until the server ends the stream."""
        for event in self._events:
            self.seen.append(event)
            yield event

    def next(self) -> Event:
        """The next event, comments passed over."""
        for event in self:
            if event.comment is None:
                return event
        raise AssertionError(f"the stream ended; seen: {self.seen}")

    def until(self, accept: Callable[[Event], object], what: str, timeout: float = 30.0) -> Event:
        """The first event that `accept` likes; the others are in `seen`."""
        deadline = time.monotonic() + timeout
        for event in self:
            if accept(event):
                return event
            if time.monotonic() >= deadline:
                raise AssertionError(f"waited {timeout:g} s until {what}; seen: {self.seen}")
        raise AssertionError(f"the stream ended before {what}; seen: {self.seen}")

    def rest(self, timeout: float = 60.0) -> list[Event]:
        """All events up to the server's end of the stream, comments left out."""
        deadline = time.monotonic() + timeout
        events: list[Event] = []
        for event in self:
            if event.comment is None:
                events.append(event)
            if time.monotonic() >= deadline:
                raise AssertionError(f"the stream did not end within {timeout:g} s; seen: {self.seen}")
        return events


@contextmanager
def open_stream(
    client: httpx.Client,
    path: str,
    *,
    params: Mapping[str, str | float] | None = None,
    last_event_id: str | None = None,
    headers: Mapping[str, str] | None = None,
    silence: float = SILENCE_SECONDS,
) -> Generator[Stream]:
    """Connects; httpx.ReadTimeout when nothing comes for `silence` seconds. The status is the test's to check."""
    resume = {} if last_event_id is None else {"Last-Event-ID": last_event_id}
    sent = {"Accept": "text/event-stream", **(headers or {}), **resume}
    timeout = httpx.Timeout(10.0, read=silence)
    with client.stream("GET", path, params=params, headers=sent, timeout=timeout) as response:
        yield Stream(response)

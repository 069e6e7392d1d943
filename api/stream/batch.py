"""What the stream of all jobs says at once: each event written down once for all streams, then filtered. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from celery_jobs.api.stream.frame import Key, Step, one_line
from celery_jobs.api.stream.position import Place, Watermark
from celery_jobs.records.changes import Changed
from celery_jobs.records.ids import JobId
from celery_jobs.records.record import NOT_LISTED, JobFilter, StreamRow
from celery_jobs.records.states import JobStatus

_CHUNK_BYTES: Final = 64 * 1024  # what a stalled connection holds at most, besides an event
_MOST_FILTERS: Final = 16
ROW_BYTES: Final = 6_000  # what a row with its record and positions takes in memory, measured
_MOST_WRITTEN: Final = 2_000

Written = dict[tuple[JobId, int, Key], bytes]


@dataclass(frozen=True, slots=True)
class Told:
    """A job's row and the events that it brings, in order; the status is None for a deletion."""

    changed: Changed
    events: list[tuple[JobStatus | None, bytes]]

    @classmethod
    def of(cls, changed: Changed, steps: Sequence[Step], written: Written | None = None) -> Told:
        """The steps as frames that carry no id; those that catch up together share what one of them has `written`."""
        written = {} if written is None else written
        return cls(changed, [_event(changed.row, step, written) for step in steps])

    def fitting(self, chosen: JobFilter) -> list[bytes]:
        """The frames for streams with this filter; a deletion has no status that could fail to fit."""
        if not self.events or not chosen.fits(self.changed.row.record, any_status=True):
            return []
        return [frame for status, frame in self.events if status is None or chosen.status in (None, status)]


def _event(row: StreamRow, step: Step, written: Written) -> tuple[JobStatus | None, bytes]:
    if step.record is None:
        return None, b'data: {"id": "%s", "status": "deleted"}\n\n' % row.id.encode()
    key = row.id, row.version, step.key
    frame = written.get(key)
    if frame is None:
        if len(written) >= _MOST_WRITTEN:
            written.clear()
        frame = b"data: %s\n\n" % one_line(step.record.model_dump_json(exclude=NOT_LISTED))
        written[key] = frame
    return step.record.status, frame


@dataclass(slots=True)
class Batch:
    """What one read brought, and where it leaves a stream; `places` is for one that falls behind here.

    `levels` is the number of the look that ends with it, if all is told that this look could see; otherwise 0.
    """

    told: Sequence[Told]
    watermark: Watermark
    places: Sequence[tuple[JobId, Place]] = ()
    levels: int = 0
    size: int = field(init=False)
    _found: dict[JobFilter, list[bytes]] = field(init=False, default_factory=dict[JobFilter, list[bytes]])

    def __post_init__(self) -> None:
        frames = sum(len(frame) for told in self.told for _, frame in told.events)
        self.size = frames + ROW_BYTES * len(self.told)

    def fitting(self, chosen: JobFilter) -> list[bytes]:
        """The frames for streams with this filter, looked for once for all of them."""
        found = self._found.get(chosen)
        if found is None:
            found = [frame for told in self.told for frame in told.fitting(chosen)]
            if len(self._found) < _MOST_FILTERS:
                self._found[chosen] = found
        return found


def chunks(frames: Sequence[bytes], watermark: Watermark) -> Iterator[bytes]:
    """Frames in pieces for the wire; the last event has the id, so that whoever is cut off before gets all again."""
    piece: list[bytes] = []
    size = 0
    for number, frame in enumerate(frames, 1):
        if number == len(frames):
            piece.append(b"id: %s\n" % str(watermark).encode())
        piece.append(frame)
        size += len(frame)
        if size >= _CHUNK_BYTES or number == len(frames):
            yield b"".join(piece)
            piece, size = [], 0


def sign_of_life(watermark: Watermark) -> bytes:
    """A comment, and an id without an event: a client that was idle for long still resumes from here."""
    return b": keep-alive\nid: %s\n\n" % str(watermark).encode()

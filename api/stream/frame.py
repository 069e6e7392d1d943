"""What a stream says: from a job's row to the events a client has not had yet (contract, section 4). Pure.

The ids come from the record alone, so every process gives the same event the same id, and a client that resumes with
`Last-Event-ID`, anywhere, gets each status of the running attempt once and in order.
"""

from __future__ import annotations

import re
from dataclasses import replace
from enum import IntEnum
from typing import Any, Final, NamedTuple

from celery_jobs.records.changes import Changed, Mark
from celery_jobs.records.record import JobRecord, StreamRow
from celery_jobs.records.states import TERMINAL, JobStatus


class Rank(IntEnum):
    """The place of an event within an attempt; the middle part of its id."""

    pending = 0
    running = 1
    canceling = 2
    pending_again = 3  # after a retry or a loss; belongs to the attempt that ended
    ended = 4
    deleted = 5


class Key(NamedTuple):
    """The id of an event; `n` counts the progress reported in this attempt."""

    attempt: int
    rank: Rank
    n: int

    def __str__(self) -> str:
        return f"{self.attempt}-{int(self.rank)}-{self.n}"


class Step(NamedTuple):
    """A status, or more progress in it, and what the record said then; no record is left of a deleted job."""

    key: Key
    record: JobRecord | None


class Event(NamedTuple):
    """One event as it goes over the wire."""

    key: Key
    frame: bytes

    @property
    def last(self) -> bool:
        """True when the stream ends after this event."""
        return self.key.rank >= Rank.ended


KEEP_ALIVE: Final = b": keep-alive\n\n"
_DELETED: Final = b'{"status": "deleted"}'
_SEPARATORS: Final = "\x85\u2028\u2029"
_KEY = re.compile(r"(0|[1-9][0-9]{0,9})-([0-5])-(0|[1-9][0-9]{0,9})")
_COUNTS_PROGRESS = (Rank.running, Rank.canceling)

# what the record could not say yet before the job ended, and before anybody asked to cancel it
_NOT_ENDED: Final[dict[str, Any]] = {"finished_at": None, "error": None, "error_traceback": None, "artifact_id": None}
_NOT_CANCELED: Final[dict[str, Any]] = {"cancel_requested_at": None, "cancel_mode": None}
_SUBMITTED: Final = Key(0, Rank.pending, 0)
_AT_SUBMISSION: Final[dict[str, Any]] = {
    "status": JobStatus.pending,
    **dict.fromkeys(("worker", "started_at", "progress")),
    "attempt": 0,
    **_NOT_ENDED,
    **_NOT_CANCELED,
}


def parse_key(text: str | None) -> Key | None:
    """The key that a `Last-Event-ID` spells; None for anything that is none."""
    match = _KEY.fullmatch(text or "")
    return Key(int(match[1]), Rank(int(match[2])), int(match[3])) if match else None


def key_of(row: StreamRow) -> Key:
    """The id of the event that tells the row's present state."""
    rank = _passed(row)[-1]
    return Key(row.attempt, rank, row.progress_seq if rank in _COUNTS_PROGRESS else 0)


def opening(row: StreamRow, last_event_id: str | None) -> tuple[Key, list[Event]]:
    """Where a stream begins: all that was missed since an id the job knows, otherwise its present state."""
    asked = parse_key(last_event_id)
    if asked is None or not _knows(row, asked):
        return key_of(row), [_event(_present(row))]
    return key_of(row), events_after(row, asked)


def is_over(row: StreamRow, last_event_id: str | None) -> bool:
    """True when the client has had the terminal event already: nothing will ever follow."""
    return row.status in TERMINAL and parse_key(last_event_id) == key_of(row)


def events_after(row: StreamRow, position: Key) -> list[Event]:
    """The events that follow `position` up to the row's present state; statuses that were passed are rebuilt."""
    return [_event(step) for step in steps_after(row, position)]


def steps_after(row: StreamRow, position: Key | None, *, ended_before: bool = False) -> list[Step]:
    """What follows `position` up to the row's present state; without a position what the job has been through.

    `ended_before`: a deleted job had ended before, which those are told who go on after a job's end.
    """
    present = key_of(row)
    if position is None:
        if present == _SUBMITTED:
            return [_present(row)]
        return [_rebuilt(row, Rank.pending), *steps_after(row, _SUBMITTED, ended_before=ended_before)]
    if position == present or position.attempt > present.attempt:
        return []
    passed = _passed(row)
    if row.deleted and ended_before:
        passed.insert(-1, Rank.ended)
    if position.attempt == present.attempt and position.rank is Rank.ended:
        missed = passed[-1:]  # only a deletion follows an end
    elif position.attempt == present.attempt and position.rank in passed:
        missed = passed[passed.index(position.rank) + 1 :] or passed[-1:]  # none passed: only progress grew
    else:
        missed = passed
    rebuilt = [_rebuilt(row, rank) for rank in missed[:-1]]
    if position.attempt == row.attempt - 1 and position.rank == Rank.running:
        rebuilt.insert(0, _waiting_again(row, position.attempt))
    return [*rebuilt, _present(row)]


def position_at(changed: Changed, seen: Mark) -> Key | None:
    """Where a job stood for who could see this much; None before its submission.

    A status whose change is not known, from before an upgrade, was seen, unless it is the present one.
    """
    row, entered = changed.row, changed.entered
    brought = {
        Rank.running: entered.started,
        Rank.pending_again: entered.requeued,
        Rank.canceling: entered.canceling,
        Rank.ended: entered.finished,
    }

    def unseen(change: int | None) -> bool:
        return change is not None and not seen.covers(change, changed.seq)

    if unseen(entered.submitted or (changed.change if key_of(row) == _SUBMITTED else None)):
        return None
    position = _SUBMITTED
    if row.attempt > 1:
        began_again = row.requeued_at is None and unseen(entered.requeued)
        position = Key(row.attempt - 1, Rank.running if began_again else Rank.pending_again, 0)
    course = [rank for rank in _passed(replace(row, deleted=False)) if rank is not Rank.pending]
    if course and not row.deleted:
        brought[course[-1]] = brought[course[-1]] or changed.change
    for rank in course:
        if unseen(brought[rank]):
            break
        # how much of the progress was seen is not known: it is told once more
        position = Key(row.attempt, rank, -1 if rank in _COUNTS_PROGRESS and row.progress_seq else 0)
    return position


def gone(position: Key) -> Event:
    """The end of a stream whose row has disappeared."""
    return _event(Step(Key(position.attempt, Rank.deleted, 0), None))


def _passed(row: StreamRow) -> list[Rank]:
    """The ranks of the present attempt in the order in which they happened; the last one is the present state."""
    passed = [Rank.running if row.attempt else Rank.pending]
    if row.requeued_at is not None or (row.status is JobStatus.pending and row.attempt):
        passed.append(Rank.pending_again)
    if row.canceling_at is not None or row.status is JobStatus.canceling:
        passed.append(Rank.canceling)
    if row.deleted:
        passed.append(Rank.deleted)  # the end that a deletion brings is not told: the record is gone
    elif row.status in TERMINAL:
        passed.append(Rank.ended)
    return passed


def _knows(row: StreamRow, key: Key) -> bool:
    if key.attempt == row.attempt:
        return key.rank in _passed(row) and key.n <= (row.progress_seq if key.rank in _COUNTS_PROGRESS else 0)
    if key.attempt > row.attempt:
        return False
    if key.attempt == 0:
        return key == _SUBMITTED
    return key.rank is Rank.running or key[1:] == (Rank.pending_again, 0)


def _present(row: StreamRow) -> Step:
    return Step(key_of(row), None if row.deleted else row.record)


def _rebuilt(row: StreamRow, rank: Rank) -> Step:
    """A status that nobody saw, with what the record said then."""
    match rank:
        case Rank.pending:
            return Step(_SUBMITTED, row.record.model_copy(update=_AT_SUBMISSION))
        case Rank.running:
            then = {"status": JobStatus.running, "progress": None, **_NOT_ENDED, **_NOT_CANCELED}
            return Step(Key(row.attempt, rank, 0), row.record.model_copy(update=then))
        case Rank.canceling:
            then = {"status": JobStatus.canceling, **_NOT_ENDED}
            return Step(Key(row.attempt, rank, row.progress_seq), row.record.model_copy(update=then))
        case Rank.ended:
            return Step(Key(row.attempt, rank, 0), row.record)
        case _:
            return _waiting_again(row, row.attempt)


def _waiting_again(row: StreamRow, attempt: int) -> Step:
    then = {"status": JobStatus.pending, "attempt": attempt, "worker": None, **_NOT_ENDED, **_NOT_CANCELED}
    return Step(Key(attempt, Rank.pending_again, 0), row.record.model_copy(update=then))


def one_line(json_text: str) -> bytes:
    """The JSON as one line for every client: some split lines at NEL, LS and PS too, which JSON leaves as they are."""
    for separator in _SEPARATORS:
        json_text = json_text.replace(separator, f"\\u{ord(separator):04x}")
    return json_text.encode()


def _event(step: Step) -> Event:
    data = _DELETED if step.record is None else one_line(step.record.model_dump_json())
    return Event(step.key, b"id: %s\ndata: %s\n\n" % (str(step.key).encode(), data))

"""The events of a stream, from rows alone: no status skipped, none repeated, whatever a client did in between."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ulid import ULID

from celery_jobs.api.stream.frame import Event, Key, Rank, events_after, gone, is_over, key_of, opening, parse_key
from celery_jobs.records.ids import JobId
from celery_jobs.records.record import JobRecord, Progress, StreamRow
from celery_jobs.records.states import MOVES, TERMINAL, CancelMode, JobStatus

START = datetime(2026, 1, 1, tzinfo=UTC)
JOB = ULID()


@dataclass
class Life:
    """A job that lives through moves and keeps the row after each of them."""

    rows: list[StreamRow] = field(default_factory=lambda: [pending_row()])

    @property
    def now(self) -> StreamRow:
        return self.rows[-1]

    def move(self, name: str) -> None:
        """Make the move if the job's state allows it."""
        row, status = self.now, self.now.status
        targets = {
            "start": JobStatus.running,
            "requeue": JobStatus.pending,
            "complete": JobStatus.completed,
            "fail": JobStatus.failed,
            "cancel": JobStatus.canceled if status is JobStatus.pending else JobStatus.canceling,
            "stop": JobStatus.canceled,
        }
        if name == "progress" and status in (JobStatus.running, JobStatus.canceling):
            count = row.progress_seq + 1
            self._write(replace(row, progress_seq=count), progress=Progress(current=count))
        elif name in targets and not row.deleted and status in MOVES[targets[name]]:
            self._enter(targets[name])
        elif name == "delete" and not row.deleted:
            self.move("cancel")
            self._write(replace(self.now, deleted=True))

    def _enter(self, status: JobStatus) -> None:
        row, clock = self.now, START + timedelta(seconds=len(self.rows))
        said: dict[str, Any] = {"status": status}
        if status is JobStatus.running:
            row = replace(row, attempt=row.attempt + 1, progress_seq=0, requeued_at=None)
            said |= {"attempt": row.attempt, "worker": "w", "progress": None}
            said |= {"started_at": row.record.started_at or clock}
        elif status is JobStatus.pending:
            row, said = replace(row, requeued_at=clock), said | {"worker": None}
        elif status is JobStatus.canceling:
            row = replace(row, canceling_at=clock)
            said |= {"cancel_requested_at": clock, "cancel_mode": CancelMode.wait}
        if status in TERMINAL:
            said |= {"finished_at": clock, "error": "ValueError: no" if status is JobStatus.failed else None}
        self._write(replace(row, status=status), **said)

    def _write(self, row: StreamRow, **said: Any) -> None:
        record = row.record.model_copy(update=said)
        self.rows.append(replace(row, version=row.version + 1, record=record))


def pending_row() -> StreamRow:
    record = JobRecord(id=JOB, status=JobStatus.pending, submitted_at=START, task="compute")
    return StreamRow(
        id=JobId(str(JOB)),
        status=JobStatus.pending,
        attempt=0,
        version=0,
        progress_seq=0,
        canceling_at=None,
        requeued_at=None,
        started_at=None,
        deleted=False,
        record=record,
    )


def lived(*moves: str) -> Life:
    life = Life()
    for move in moves:
        before = len(life.rows)
        life.move(move)
        assert len(life.rows) > before, f"{move} is not possible in {life.now.status}"
    return life


def data(event: Event) -> dict[str, Any]:
    lines = event.frame.decode().splitlines()
    assert (lines[0], lines[2:]) == (f"id: {event.key}", [""])
    assert event.frame.endswith(b"\n\n")
    return json.loads(lines[1].removeprefix("data: "))


def told(events: list[Event]) -> list[str]:
    return [f"{event.key} {data(event)['status']}" for event in events]


def without(names: set[str], fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in names}


def forgotten(row: StreamRow, key: Key) -> set[str]:
    """The worker when the job waits again, and the progress of an attempt when the next one starts."""
    if row.attempt != key.attempt:
        return {"worker", "progress"}
    return {"worker"} if row.requeued_at is not None else set()


MOVES_OF_A_LIFE = ["start", "start", "progress", "progress", "requeue", "complete", "fail", "cancel", "stop", "delete"]


@given(st.lists(st.sampled_from(MOVES_OF_A_LIFE), max_size=14), st.data())
def test_a_client_that_looks_and_resumes_anywhere_misses_and_repeats_no_status(moves: list[str], choose: st.DataObject):
    life = Life()
    for move in moves:
        life.move(move)
    visible = [row for row in life.rows if not row.deleted] or life.rows[:1]
    first = choose.draw(st.integers(0, len(visible) - 1), "first look")
    position, seen = opening(visible[first], None)
    for row in life.rows[first + 1 :]:
        if seen[-1].last:
            break
        match choose.draw(st.sampled_from(["nothing", "look", "resume"]), "then"):
            case "look":
                seen += events_after(row, position)
            case "resume" if not row.deleted:
                seen += opening(row, str(position))[1]
            case _:
                continue
        position = seen[-1].key
    seen += events_after(life.now, position) if not seen[-1].last else []

    keys = [event.key for event in seen]
    assert keys == sorted(set(keys)), "in order, and none twice"
    assert seen[-1].key == key_of(life.now) or seen[-1].key.rank is Rank.ended
    last_attempt = keys[-1].attempt
    of_last = list(dict.fromkeys(key.rank for key in keys if key.attempt == last_attempt))
    began_in_it = keys[0].attempt == last_attempt
    full = full_course(life, last_attempt, ended=seen[-1].key.rank is Rank.ended)
    assert of_last == (full[full.index(of_last[0]) :] if began_in_it else full)


def full_course(life: Life, attempt: int, *, ended: bool) -> list[Rank]:
    """The ranks that the job really went through in this attempt, in order."""
    rows = [row for row in life.rows if row.attempt == attempt]
    course = list(dict.fromkeys(key_of(row).rank for row in rows))
    if not ended and Rank.deleted in course and Rank.ended in course:
        course.remove(Rank.ended)  # the end that a deletion brings is told as the deletion
    return course[: course.index(Rank.ended) + 1] if ended else course


@given(st.lists(st.sampled_from(MOVES_OF_A_LIFE), max_size=12))
def test_a_rebuilt_event_says_what_the_record_said_then(moves: list[str]):
    life = Life()
    for move in moves:
        life.move(move)
    then = {key_of(row): row for row in life.rows}
    for row in life.rows:
        for position in then:
            for event in events_after(row, position):
                if event.key in then and event.key.rank < Rank.deleted and not row.deleted:
                    expected = json.loads(then[event.key].record.model_dump_json())
                    lost = forgotten(row, event.key)
                    assert without(lost, data(event)) == without(lost, expected)


def test_a_fresh_stream_begins_with_the_present_state_only():
    assert told(opening(lived("start", "complete").now, None)[1]) == ["1-4-0 completed"]


def test_a_job_that_ran_between_two_looks_is_told_as_running_and_completed():
    row = lived("start", "progress", "complete").now
    assert told(events_after(row, Key(0, Rank.pending, 0))) == ["1-1-0 running", "1-4-0 completed"]


def test_progress_is_merged():
    row = lived("start", "progress", "progress", "progress").now
    assert told(events_after(row, Key(1, Rank.running, 1))) == ["1-1-3 running"]


def test_a_retry_between_two_looks_is_told():
    row = lived("start", "requeue", "start").now
    assert told(events_after(row, Key(1, Rank.running, 0))) == ["1-3-0 pending", "2-1-0 running"]


def test_a_client_away_for_several_attempts_gets_the_running_one_whole():
    row = lived("start", "requeue", "start", "requeue", "start", "cancel").now
    assert told(events_after(row, Key(1, Rank.running, 0))) == ["3-1-0 running", "3-2-0 canceling"]


def test_a_deletion_is_told_after_what_was_passed():
    row = lived("start", "delete").now
    assert told(events_after(row, Key(0, Rank.pending, 0))) == ["1-1-0 running", "1-2-0 canceling", "1-5-0 deleted"]
    assert told(events_after(lived("delete").now, Key(0, Rank.pending, 0))) == ["0-5-0 deleted"]
    assert told([gone(Key(1, Rank.running, 7))]) == ["1-5-0 deleted"]


def test_the_deleted_event_is_spelled_as_documented():
    assert gone(Key(0, Rank.pending, 0)).frame == b'id: 0-5-0\ndata: {"status": "deleted"}\n\n'


@pytest.mark.parametrize(
    "last_event_id",
    [
        *("", "nonsense", "1-1", "1-1-1-1", "-1-1-0", "1-9-0", "01-1-0", "1-1-0\n", "\u0661-1-0"),  # malformed
        *("2-1-0", "1-4-0", "1-1-3", "9999999999-1-0"),  # of the future
        *("1-2-0", "1-3-0", "1-0-0", "0-1-0", "0-2-0", "0-0-1", "1-5-0"),  # not passed
    ],
)
def test_an_id_that_the_job_does_not_know_gives_the_present_state(last_event_id: str):
    row = lived("start", "progress", "progress").now
    assert told(opening(row, last_event_id)[1]) == ["1-1-2 running"]


def test_the_present_event_as_id_gives_nothing_more():
    row = lived("start", "progress").now
    assert opening(row, "1-1-1") == (Key(1, Rank.running, 1), [])


def test_only_the_terminal_event_itself_ends_reconnecting():
    row = lived("start", "complete").now
    assert is_over(row, "1-4-0")
    assert not any(is_over(row, other) for other in ("1-1-0", None, "2-4-0"))
    assert not is_over(lived("start").now, "1-1-0")


def test_a_frame_stays_one_line_for_every_reader_whatever_a_text_holds():
    nasty = "a\r\nb\rc\nd\u2028e\u2029f\x85g\x0bh\x0ci\x1cj\x1dk\x1el\x00m\n\ndata: {}\n\nid: 9-9-9"
    row = lived("start", "fail").now
    row = replace(row, record=row.record.model_copy(update={"error": nasty}))
    (event,) = opening(row, None)[1]
    assert data(event)["error"] == nasty


def test_keys_come_back_from_their_spelling():
    for key in (Key(0, Rank.pending, 0), Key(12, Rank.canceling, 345)):
        assert parse_key(str(key)) == key

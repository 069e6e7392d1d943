"""Where a follower of all jobs stands, and what a row tells it: no status skipped and none repeated. Pure."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_jobs.api.stream.batch import Batch, Told, chunks, sign_of_life
from celery_jobs.api.stream.frame import Key, Rank, Step, key_of, position_at, steps_after
from celery_jobs.api.stream.position import Place, Positions, Watermark, parse_watermark
from celery_jobs.records.changes import Changed, Entered, Mark
from celery_jobs.records.record import JobFilter, StreamRow
from celery_jobs.records.states import TERMINAL, JobStatus
from tests.support.sse import parse
from tests.unit.test_stream_frame import JOB, MOVES_OF_A_LIFE, Life, lived, without

SEQ = 7
NOTHING = Mark(0)


def change(number: int) -> int:
    """The change that wrote the row with this number; every change is a transaction of its own."""
    return 10 * (number + 1)


def seen(number: int) -> Mark:
    """The mark of a look that saw the rows up to this number; -1 for none."""
    return Mark(change(number) + 1)


def changed(life: Life, last: int = -1) -> Changed:
    """The last row as the reader of all jobs finds it, with the changes that brought its statuses."""
    last = range(len(life.rows))[last]
    brought: dict[JobStatus, int] = {}
    for number, (before, row) in enumerate(zip([None, *life.rows], life.rows[: last + 1], strict=False)):
        if before is None or row.status is not before.status:
            brought[row.status] = change(number)
    finished = [brought[status] for status in TERMINAL if status in brought]
    entered = Entered(
        submitted=change(0),
        started=brought.get(JobStatus.running),
        requeued=brought[JobStatus.pending] if brought[JobStatus.pending] > change(0) else None,
        canceling=brought.get(JobStatus.canceling),
        finished=max(finished, default=None),
    )
    row, place = life.rows[last], change(last)
    if row.deleted and row.status is JobStatus.canceled and not life.rows[last - 1].deleted:
        place = entered.finished or place  # a deletion cancels in the same transaction
    return Changed(place, SEQ, row, entered)


def statuses(steps: list[Step]) -> list[str]:
    return ["deleted" if step.record is None else str(step.record.status) for step in steps]


def course(life: Life, first: int, last: int) -> list[Rank]:
    """The ranks of the last row's attempt that the job went through from one row to another."""
    ranks = [key_of(row).rank for row in life.rows[first : last + 1] if row.attempt == life.rows[last].attempt]
    told = list(dict.fromkeys(ranks))
    # canceled because of the deletion, in one transaction: told as the deletion
    if Rank.deleted in told and life.rows[last].status is JobStatus.canceled and Rank.ended in told:
        told.remove(Rank.ended)
    return told


@given(st.lists(st.sampled_from(MOVES_OF_A_LIFE), max_size=14), st.data())
def test_whoever_looks_now_and_then_is_told_each_status_once_and_in_order(moves: list[str], choose: st.DataObject):
    """Both ways of knowing what was told before: from what was told, and from the mark of the look before."""
    life = Life()
    for move in moves:
        life.move(move)
    looks = sorted(choose.draw(st.sets(st.integers(0, len(life.rows) - 1), min_size=1), "looks"))
    positions, told, by_marks, mark = Positions(10), list[Step](), list[Step](), NOTHING
    for look in looks:
        told += positions.advance(changed(life, look), NOTHING)
        assert positions.advance(changed(life, look), NOTHING) == []
        by_marks += Positions(10).advance(changed(life, look), mark)
        mark = seen(look)
    for steps in (told, by_marks):
        keys = [step.key for step in steps]
        assert keys[0] == Key(0, Rank.pending, 0)
        if steps is told:
            assert keys == sorted(set(keys)), "in order, and none twice"
        attempt = life.rows[looks[-1]].attempt
        ranks = [key.rank for key in keys if key.attempt == attempt]
        assert ranks == sorted(ranks, key=list(Rank).index)
        of_last, expected = list(dict.fromkeys(ranks)), course(life, 0, looks[-1])
        if Rank.ended in of_last and Rank.ended not in expected:  # told before the deletion
            of_last.remove(Rank.ended)
        assert of_last == expected


@given(st.lists(st.sampled_from(MOVES_OF_A_LIFE), max_size=14), st.data())
def test_by_the_changes_no_status_is_skipped_and_only_progress_is_repeated(moves: list[str], choose: st.DataObject):
    life = Life()
    for move in moves:
        life.move(move)
    last = choose.draw(st.integers(0, len(life.rows) - 1), "look")
    before = choose.draw(st.integers(-1, last - 1), "seen")
    row = life.rows[last]
    steps = Positions(1).advance(changed(life, last), seen(before))
    ranks = [step.key.rank for step in steps if step.key.attempt == row.attempt]
    known = course(life, 0, before) if before >= 0 and life.rows[before].attempt == row.attempt else []
    missed = [rank for rank in course(life, before + 1, last) if rank not in known]  # more progress is no new status
    assert [rank for rank in ranks if rank in missed] == missed
    assert not ({*ranks} & {*known}) - {Rank.running, Rank.canceling, Rank.deleted}
    assert row.progress_seq or not {*ranks} & {*known} & {Rank.running, Rank.canceling}


def test_what_was_passed_before_a_job_was_first_seen_is_rebuilt_from_its_submission_on():
    life = lived("start", "complete")
    steps = steps_after(life.now, None)
    assert [step.key for step in steps] == [Key(0, Rank.pending, 0), Key(1, Rank.running, 0), Key(1, Rank.ended, 0)]
    for step, then in zip(steps, life.rows, strict=True):
        assert step.record is not None
        assert without({"progress"}, step.record.model_dump()) == without({"progress"}, then.record.model_dump())


@pytest.mark.parametrize(
    ("moves", "told"),
    [
        ((), ["pending"]),
        (("cancel",), ["pending", "canceled"]),
        (("delete",), ["pending", "deleted"]),
        (("start", "cancel", "stop"), ["pending", "running", "canceling", "canceled"]),
        (("start", "cancel", "stop", "delete"), ["pending", "running", "canceling", "canceled", "deleted"]),
        (("cancel", "delete"), ["pending", "deleted"]),  # as if in one transaction
        (("start", "complete", "delete"), ["pending", "running", "completed", "deleted"]),
        (("start", "delete"), ["pending", "running", "canceling", "deleted"]),
        (("start", "requeue"), ["pending", "running", "pending"]),
        (("start", "requeue", "start"), ["pending", "running"]),
    ],
)
def test_a_job_that_nobody_has_seen_yet_is_told_from_its_submission_on(moves: tuple[str, ...], told: list[str]):
    found = changed(lived(*moves))
    if moves == ("start", "cancel", "stop", "delete"):
        found = found._replace(change=1000)
    assert statuses(Positions(1).advance(found, NOTHING)) == told


def test_after_its_end_only_a_deletion_is_told():
    for life in (lived("start", "complete", "delete"), lived("start", "cancel", "stop", "delete")):
        assert statuses(steps_after(life.now, key_of(life.rows[-2]), ended_before=True)) == ["deleted"]
        assert statuses(Positions(1).advance(changed(life)._replace(change=1000), seen(len(life.rows) - 2))) == [
            "deleted"
        ]


def test_a_run_after_the_first_has_a_change_of_its_own():
    life = lived("start", "requeue", "start", "complete")

    def told(number: int) -> list[str]:
        return statuses(Positions(1).advance(changed(life), seen(number)))

    assert told(3) == ["completed"]
    assert told(2) == ["running", "completed"]
    assert told(1) == ["pending", "running", "completed"], "it was told to wait again before that"


def test_progress_that_may_be_new_is_told():
    life = lived("start", "progress")
    assert statuses(Positions(1).advance(changed(life), seen(1))) == ["running"]
    assert Positions(1).advance(changed(lived("start"))._replace(change=1000), seen(1)) == [], "only touched"


def test_what_a_release_wrote_that_knew_no_changes_of_statuses_is_told_as_far_as_it_is_new():
    found = changed(lived("start", "complete"))._replace(entered=Entered(None, None, None, None, None))
    assert position_at(found, seen(1)) == Key(1, Rank.running, 0)
    assert statuses(Positions(1).advance(found, seen(1))) == ["completed"]
    fresh = changed(lived())._replace(entered=Entered(None, None, None, None, None))
    assert statuses(Positions(1).advance(fresh, NOTHING)) == ["pending"]


def test_an_older_row_is_no_news():
    life, positions = lived("start", "complete"), Positions(10)
    assert len(positions.advance(changed(life), NOTHING)) == 3
    assert positions.advance(changed(life, 1), NOTHING) == []


def other(number: int, row: StreamRow) -> Changed:
    return changed(lived("start"))._replace(row=replace(row, id=f"{number:026}"))  # type: ignore[arg-type]


def test_the_jobs_that_changed_last_are_remembered():
    row, positions = lived("start").now, Positions(3)

    def known() -> list[int]:
        """Which of the jobs are remembered, since an older row of them would be no news."""
        ids = [other(number, row).row.id for number in range(5)]
        return [number for number, job_id in enumerate(ids) if job_id in positions]

    for number in (0, 1, 2, 3, 4, 2):
        positions.keep(other(number, row).row.id, Place(0, key_of(row)))
    assert known() == [2, 3, 4]
    positions.limit(1)
    assert known() == [2]
    assert len(positions) == 1


def test_who_was_told_something_elsewhere_is_told_the_rest():
    life, positions = lived("start", "complete"), Positions(10)
    positions.keep(life.now.id, Place(1, key_of(life.rows[1])))
    assert positions.advance(changed(life, 1), NOTHING) == []
    assert statuses(positions.advance(changed(life), NOTHING)) == ["completed"]


# --- event ids


MARKS = [Mark(1), Mark(740, (), 12), Mark(740, (1, 738)), Mark(740, (738,), 3)]


@pytest.mark.parametrize("told", MARKS)
@pytest.mark.parametrize("mark", MARKS)
def test_an_id_comes_back_from_its_spelling(mark: Mark, told: Mark):
    watermark = Watermark(mark, told)
    assert parse_watermark(str(watermark)) == (watermark if told.high <= mark.high else None)


def test_an_id_is_a_number_where_nothing_is_open():
    assert str(Watermark(Mark(740), Mark(740))) == "740"


def test_an_id_stays_short_when_many_transactions_are_open():
    many = Watermark(Mark(10**9, tuple(range(1000, 2000))), Mark(900))
    assert str(many) == "1000-900"
    assert parse_watermark(str(many)) == Watermark(Mark(1000), Mark(900))
    # shortened, it has read less than was told: it says no more than it has read
    many = Watermark(Mark(2000, tuple(range(900, 951))), Mark(1000, (900,)))
    assert parse_watermark(str(many)) == Watermark(Mark(900), Mark(900))


@pytest.mark.parametrize(
    "text",
    [
        *(None, "", "x", "1-", "-1", "1-1-0", "1-2", "1-1\n", " 1-1", "9" * 19, "\u0661", "+1", "1e3"),
        *("1.2", "5.3.3", "5.4.3", "1.", "1_", "_1", "740" + ".1" * 51, "740-5.6"),
    ],
)
def test_what_is_no_id_is_none(text: str | None):
    assert parse_watermark(text) is None


# --- batches


def told(*moves: str) -> Told:
    found = changed(lived(*moves))
    return Told.of(found, Positions(1).advance(found, NOTHING))


def test_events_show_jobs_as_lists_do_and_a_deletion_with_the_id():
    events = told("start", "fail", "delete").events
    frames = [json.loads(frame.decode().removeprefix("data: ")) for _, frame in events]
    assert [status for status, _ in events] == ["pending", "running", "failed", None]
    assert all("error_traceback" not in frame for frame in frames)
    assert frames[-1] == {"id": str(JOB), "status": "deleted"}


def test_a_filter_by_status_lets_deletions_pass_and_the_others_do_not():
    batch = Batch([told("start", "complete", "delete")], Watermark(Mark(5), Mark(5)))

    def found(**chosen: object) -> list[str]:
        frames = batch.fitting(JobFilter(**chosen))  # type: ignore[arg-type]
        assert batch.fitting(JobFilter(**chosen)) is frames  # type: ignore[arg-type]
        return [json.loads(frame.decode().removeprefix("data: "))["status"] for frame in frames]

    assert found() == ["pending", "running", "completed", "deleted"]
    assert found(status=JobStatus.running) == ["running", "deleted"]
    assert found(task="other") == found(tags=("x",)) == []


def test_only_the_last_event_of_a_batch_has_the_id_and_no_piece_is_much_larger_than_the_others():
    frames = [b'data: {"n": %d, "pad": "%s"}\n\n' % (number, b"x" * 1000) for number in range(300)]
    watermark = Watermark(Mark(740), Mark(740))
    pieces = list(chunks(frames, watermark))
    assert all(piece.endswith(b"\n\n") and len(piece) < 70_000 for piece in pieces)
    events = list(parse(b"".join(pieces).decode().splitlines()))
    assert [event.data["n"] for event in events if event.data] == list(range(300))
    assert [event.id for event in events] == [None] * 299 + [str(watermark)]
    assert list(chunks([], watermark)) == []


def test_a_sign_of_life_is_a_comment_and_an_id_without_an_event():
    watermark = Watermark(Mark(740), Mark(740))
    assert sign_of_life(watermark) == b": keep-alive\nid: 740\n\n"
    assert [event.comment for event in parse(sign_of_life(watermark).decode().splitlines())] == ["keep-alive"]

"""The judge of a storm finds each kind of lie, and finds none in what is true."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.chaos import judge as judged
from tests.chaos.story import Plan, Story, Told
from tests.chaos.toll import FOREVER, Toll
from tests.support.journal import Line

T, LIMIT = 6.0, 2
ID = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
NAP = Plan(1, "nap", 0.1, "nothing", 0.0, follows=True)
START, END = Line(ID, "start", 100.0, 7, NAP.key), Line(ID, "end", 101.0, 7, NAP.key, "return")


def at(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def record(status: str, finished: float | None = 101.0, **more: Any) -> dict[str, Any]:
    return {
        "status": status, "attempt": 1, "started_at": at(99.9), "finished_at": finished and at(finished), "error": None,
    } | more  # fmt: skip


def story(final: dict[str, Any] | None, plan: Plan = NAP, **more: Any) -> Story:
    told = Story(plan, 99.0, {ID}, final=final, **more)
    if final is not None:
        told.see(final, 102.0)
    return told


def broken(told: Story, *lines: Line, toll: Toll | None = None) -> set[str]:
    return {name for name, count in judged.judge([told], lines, toll or Toll(), T, LIMIT).broken.items() if count}


def test_a_true_story_breaks_nothing() -> None:
    events = [Told(99.0, "pending", None, "0-0-0"), Told(100.0, "running", None, "1-1-0")]
    told = story(record("completed"), events=[*events, Told(101.0, "completed", at(101.0), "1-4-0")], stream="ended")
    assert not broken(told, START, END)


def test_what_was_accepted_and_is_not_there_is_lost() -> None:
    assert broken(story(None)) == {judged.LOST}


def test_what_was_deleted_is_not_lost_but_gone() -> None:
    assert not broken(story(None, delete_asked=True, deleted=True))
    assert broken(story(record("canceled"), canceled_at=1.0, deleted=True)) == {judged.FALSE}


@pytest.mark.parametrize("status", ["pending", "running", "canceling"])
def test_what_has_no_end_never_ended(status: str) -> None:
    assert broken(story(record(status, None)), START) == {judged.NEVER}


@pytest.mark.parametrize(
    ("final", "lines"),
    [
        (record("completed"), [START]),
        (record("completed"), []),
        (record("completed", 100.5), [START, END]),
        (record("completed"), [START, replace(END, how="ValueError")]),
        (record("failed", error="ValueError: x"), [START, END]),
        (record("failed", error="WorkerLost: gone"), [START, END]),
        (record("canceled"), [START, END]),
    ],
)
def test_what_its_code_did_not_do_is_false(final: dict[str, Any], lines: list[Line]) -> None:
    assert broken(story(final), *lines) == {judged.FALSE}


def test_canceled_while_the_code_runs_is_false() -> None:
    assert broken(story(record("canceled", 100.2), canceled_at=100.1), START, END) == {judged.FALSE}


def test_a_worker_is_lost_only_where_a_process_was_hurt() -> None:
    lost = record("failed", error="WorkerLost: gone")
    assert not broken(story(lost), START, toll=Toll(deaths={7: [100.5]}))
    assert not broken(story(lost), START, END, toll=Toll(stops={7: [(99.0, 110.0)]}))
    assert broken(story(lost), START, END, toll=Toll(deaths={8: [100.5]})) == {judged.FALSE}
    assert not broken(story(lost)), "killed between its claim and its first line"


def test_a_worker_may_fall_silent_before_its_code_begins_and_after_it_ended() -> None:
    lost = record("failed", finished=108.0, error="WorkerLost: gone")
    assert not broken(
        story(lost), replace(START, at=110.5), replace(END, at=111.0), toll=Toll(stops={7: [(100.0, 110.0)]})
    )
    assert not broken(story(lost), START, END, toll=Toll(stops={7: [(102.0, 112.0)]}))
    assert broken(story(lost), START, END, toll=Toll(stops={7: [(109.0, 119.0)]})) == {judged.FALSE}
    assert broken(story(lost), START, END, toll=Toll(deaths={7: [109.0]})) == {judged.FALSE}


def test_a_second_run_is_told_where_one_is_allowed() -> None:
    again, ended = replace(START, at=102.0, pid=8), replace(END, at=103.0, pid=8)
    assert broken(story(record("completed", 103.0)), START, END, again, ended) == {judged.TWICE}
    safe, retried = replace(NAP, task="safe"), replace(NAP, task="again")
    lines = START, END, again, ended
    assert broken(story(record("completed", 103.0), safe), *lines) == {judged.TWICE}, "nobody hurt the first"
    assert not broken(story(record("completed", 103.0), safe), *lines, toll=Toll(deaths={7: [101.01]}))
    assert broken(story(record("completed", 103.0), retried), *lines) == {judged.TWICE}, "it did not ask for it"
    asked = replace(END, how="Retry")
    assert not broken(story(record("completed", 103.0), retried), START, asked, again, ended)


def test_a_start_after_the_cancel_is_found() -> None:
    told = story(record("canceled", 99.5), canceled_at=99.0, cancel_told=Told(99.5, "canceled"))
    assert broken(told, START, replace(END, at=100.01)) >= {judged.AFTER}


def test_more_at_once_than_the_limit_is_found() -> None:
    others = [replace(START, job=str(number), mark=str(number), pid=number) for number in range(LIMIT)]
    ends = [replace(END, job=line.job, mark=line.mark, pid=line.pid) for line in others]
    assert broken(story(record("completed")), START, *others, END, *ends) == {judged.OVER}
    assert not broken(story(record("completed")), START, others[0], END, ends[0])


def test_a_run_whose_process_was_killed_holds_its_slot_no_longer() -> None:
    others = [replace(START, job=str(number), mark=str(number), pid=number, at=100.6) for number in range(LIMIT)]
    told = story(record("failed", error="WorkerLost: gone"))
    assert not broken(told, START, *others, toll=Toll(deaths={7: [100.5], 0: [101.0], 1: [101.0]}))


def test_a_stream_without_an_end_hangs() -> None:
    assert broken(story(record("completed"), stream="open"), START, END) == {judged.HUNG}
    assert broken(story(record("completed"), stream="ended", silences=1), START, END) == {judged.HUNG}


@pytest.mark.parametrize(
    "ids",
    [
        [("0-0-0", "pending"), ("0-0-0", "pending")],
        [("1-1-0", "running"), ("0-0-0", "pending")],
        [("0-0-0", "pending"), ("1-4-0", "completed")],
    ],
)
def test_a_stream_that_repeats_or_skips_is_found(ids: list[tuple[str, str]]) -> None:
    events = [Told(100.0, status, None, event_id) for event_id, status in ids]
    assert broken(story(record("completed"), events=events, stream="ended"), START, END) == {judged.ORDER}


def test_an_end_that_changed_is_found() -> None:
    told = story(record("completed"))
    told.see(record("failed"), 103.0)
    assert broken(told, START, END) == {judged.CHANGED}
    later = story(record("completed"))
    later.see(record("completed", 102.0), 103.0)
    assert broken(later, START, END) == {judged.CHANGED}


def test_two_jobs_for_one_key_are_found() -> None:
    twin = replace(START, job="01ARZ3NDEKTSV4RRFFQ69G5FAW")
    assert broken(story(record("completed")), START, END, twin) == {judged.DOUBLE}


def test_a_process_that_stands_still_is_known_while_it_does() -> None:
    toll = Toll()
    with toll.frozen([7]):
        assert toll.stood_still([7], 0.0)
        assert toll.stops[7][0][1] == FOREVER
    assert toll.stops[7][0][1] < FOREVER
    assert not toll.stood_still([8], 0.0)

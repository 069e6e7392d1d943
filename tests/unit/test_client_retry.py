"""The SDK's pauses grow and stay bounded; a call is repeated for a bounded time, and not at all where it is in vain."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_jobs.client.errors import ClientError, Problem, Unauthorized, Unavailable, Unreachable
from celery_jobs.client.retry import (
    FIRST_PAUSE_SECONDS,
    LONGEST_ASKED_PAUSE_SECONDS,
    LONGEST_PAUSE_SECONDS,
    Backoff,
    Hurry,
    Patience,
    patiently,
)

DOWN = Unreachable("connection refused")


@given(st.integers(1, 2000), st.floats(0, 1, exclude_max=True))
def test_no_pause_is_long_and_none_is_short(failures: int, chance: float) -> None:
    backoff = Backoff(lambda: chance)
    pauses = [backoff.pause_after(DOWN) for _ in range(failures)]
    assert all(FIRST_PAUSE_SECONDS / 2 <= pause <= LONGEST_PAUSE_SECONDS for pause in pauses)
    assert all(later >= earlier for earlier, later in pairwise(pauses))


def test_pauses_double_until_the_longest() -> None:
    backoff = Backoff(lambda: 1.0)
    assert [backoff.pause_after(DOWN) for _ in range(7)] == [0.25, 0.5, 1.0, 2.0, 4.0, 5.0, 5.0]


def test_clients_do_not_come_back_at_once() -> None:
    pauses = {Backoff().pause_after(DOWN) for _ in range(50)}
    assert len(pauses) > 40


def test_success_makes_pauses_short_again() -> None:
    backoff = Backoff(lambda: 1.0)
    for _ in range(5):
        backoff.pause_after(DOWN)
    assert backoff.failing
    backoff.reset()
    assert not backoff.failing
    assert backoff.pause_after(DOWN) == FIRST_PAUSE_SECONDS


def test_retry_after_is_obeyed_within_reason() -> None:
    assert Backoff().pause_after(Unavailable(503, {}, 7.0)) == 7.0
    assert Backoff().pause_after(Unavailable(503, {}, 86400.0)) == LONGEST_ASKED_PAUSE_SECONDS
    assert Backoff(lambda: 1.0).pause_after(Unavailable(503, {}, 0.0)) == FIRST_PAUSE_SECONDS


def failing(error: ClientError, tries: list[float], works_at: int = 1_000_000) -> str:
    tries.append(time.monotonic())
    if len(tries) < works_at:
        raise error
    return "done"


def test_a_call_is_repeated_until_it_works() -> None:
    tries: list[float] = []
    assert patiently(lambda _: failing(DOWN, tries, 3), 30, Hurry()) == "done"
    assert len(tries) == 3


def test_a_call_gives_up_in_time_with_the_error() -> None:
    tries: list[float] = []
    begun = time.monotonic()
    with pytest.raises(Unreachable):
        patiently(lambda _: failing(DOWN, tries), 1.0, Hurry())
    assert time.monotonic() - begun < 1.5
    assert 2 <= len(tries) <= 5


@pytest.mark.parametrize("error", [Unauthorized(401, {}), Problem(404, {}), Problem(409, {}), ClientError("no")])
def test_what_is_the_callers_fault_is_not_repeated(error: ClientError) -> None:
    tries: list[float] = []
    with pytest.raises(type(error)):
        patiently(lambda _: failing(error, tries), 30, Hurry())
    assert len(tries) == 1


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504])
def test_what_is_the_servers_trouble_is_repeated(status: int) -> None:
    tries: list[float] = []
    assert patiently(lambda _: failing(Problem(status, {}), tries, 2), 30, Hurry()) == "done"


def test_a_hurry_cuts_the_time_that_is_left() -> None:
    hurry = Hurry()
    patience = Patience(600, hurry)
    assert patience.left_seconds > 590
    hurry.begin()
    assert 4 < patience.left_seconds <= 5
    assert 4 < Patience(600, hurry).left_seconds <= 5  # also of what begins later
    assert Patience(1, hurry).left_seconds <= 1
    hurry.end()
    assert patience.left_seconds > 590


def test_a_pause_that_would_outlast_the_time_is_not_slept() -> None:
    begun = time.monotonic()
    assert not Patience(5, Hurry()).pause(30)
    assert time.monotonic() - begun < 1

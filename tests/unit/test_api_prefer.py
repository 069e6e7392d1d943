"""The header Prefer (RFC 7240) and the cursors of lists."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_jobs.api.paging import _cursor, place
from celery_jobs.api.prefer import Preferences, preferences
from celery_jobs.records.errors import InvalidCursor

LONG = 10**9


@pytest.mark.parametrize(
    ("headers", "respond_async", "wait_seconds"),
    [
        (["wait=10"], False, 10),
        (["respond-async, wait=10"], True, 10),
        (["respond-async", "wait=10"], True, 10),
        (["Respond-Async;x=y , WAIT = 10 ; foo; bar=baz"], True, 10),
        (['wait="7"'], False, 7),
        (["handling=lenient, return=minimal,,wait=3,"], False, 3),
        (['foo="a, wait=9", wait=4'], False, 4),
        (['foo="a\\", wait=9", wait=4'], False, 4),
        (["wait=0"], False, 0),
        (["wait=5, wait=6"], False, 5),  # the first instance counts
        (["wait=abc, wait=6"], False, None),
        (["wait=-1"], False, None),
        (["wait=+1"], False, None),
        (["wait=1.5"], False, None),
        (["wait=1e9"], False, None),
        (["wait="], False, None),
        (["wait"], False, None),
        (["wait=\u0661"], False, None),
        (["wait=1000000000"], False, LONG),
        (["wait=" + "9" * 4000], False, LONG),
        (["await=5"], False, None),
        ([""], False, None),
        (['"'], False, None),
        (['foo="unclosed, wait=5'], False, None),
        (["=5, ;, respond-async"], True, None),
    ],
)
def test_preferences_are_read_and_odd_ones_ignored(headers: list[str], respond_async: bool, wait_seconds: int | None):
    assert preferences(headers) == Preferences(respond_async, wait_seconds)


@given(st.lists(st.text(st.characters(max_codepoint=255)), max_size=3))
def test_no_header_is_an_error(headers: list[str]):
    found = preferences(headers)
    assert found.wait_seconds is None or 0 <= found.wait_seconds <= LONG


@pytest.mark.parametrize("piece", ['"', '"\\', ",", ";", "a;", ' "x" ;', "=", "wait=1,"])
def test_no_header_takes_long_to_read(piece: str):
    begun = time.perf_counter()
    preferences([piece * 10_000])
    assert time.perf_counter() - begun < 0.5


def test_what_was_honoured_is_said():
    assert Preferences(True, 5).applied(accepted=True, waited=True) == {"Preference-Applied": "respond-async, wait"}
    assert Preferences(True, 5).applied(accepted=False, waited=True) == {"Preference-Applied": "wait"}
    assert Preferences(False, 5).applied(accepted=True, waited=False) == {}


@given(st.integers(1, 10**18 - 1))
def test_a_cursor_leads_back_to_its_place(below: int):
    assert place(_cursor(below), 10**18) == below


@given(st.text(min_size=1, max_size=100))
def test_anything_else_is_no_cursor(text: str):
    with pytest.raises(InvalidCursor):
        place(text, 10**18)


@given(st.integers(1, 10**60 - 1))
def test_a_cursor_that_leads_past_all_places_is_refused(places: int):
    assert place(_cursor(places), places + 1) == places
    with pytest.raises(InvalidCursor):
        place(_cursor(places), places)


@pytest.mark.parametrize(
    "text", ["YmVsb3c6MA", "YmVsb3c6Mw==", "YmVsb3c6Mw\n", "YmVsb3c6LTM", "YmVsb3c6M", "YmVsb3c6Mx", "3"]
)
def test_a_cursor_that_was_changed_is_refused(text: str):
    with pytest.raises(InvalidCursor):
        place(text, 10**18)

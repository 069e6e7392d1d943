"""Which known word a misspelt one means."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_jobs.records.spelling import nearest, slips

WORDS = st.text("abc", max_size=6)


@pytest.mark.parametrize(
    ("left", "right", "count"),
    [
        ("", "", 0),
        ("a", "a", 0),
        ("a", "", 1),
        ("port", "prt", 1),
        ("port", "porrt", 1),
        ("port", "part", 1),
        ("port", "prot", 1),
        ("port", "rpot", 2),
        ("kitten", "sitting", 3),
    ],
)
def test_slips_are_counted(left: str, right: str, count: int) -> None:
    assert slips(left, right) == slips(right, left) == count


@given(WORDS, WORDS)
def test_no_slip_means_the_same_word_and_no_word_is_farther_than_all_of_its_letters(left: str, right: str) -> None:
    assert (slips(left, right) == 0) == (left == right)
    assert abs(len(left) - len(right)) <= slips(left, right) <= max(len(left), len(right))


def test_of_words_that_are_equally_near_the_first_is_meant() -> None:
    assert nearest("kesy", ["keys", "key"]) == "keys"
    assert nearest("kesy", ["key", "keys"]) == "key"
    assert nearest("x" * 10_000, ["key", "keys"]) in ("key", "keys")

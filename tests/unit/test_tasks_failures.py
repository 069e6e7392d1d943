"""What a record says of an exception, and what Celery is given in its place."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_jobs.tasks.failures import (
    ERROR_CHARACTERS,
    TRACEBACK_BYTES,
    error_for_celery,
    error_line,
    one_line,
    traceback_text,
)
from tests.support.error_tasks import ERRORS, Unspeakable, chained

ANY_TEXT = st.text(st.characters(codec=None), max_size=200)


def valid(line: str, text: str) -> None:
    assert line
    assert line.splitlines() == [line]
    assert len(line) <= ERROR_CHARACTERS
    assert len(text.encode()) <= TRACEBACK_BYTES
    assert not {"\x00"} & {*line, *text}
    line.encode()


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("a\r\nb\u2028c\x00d\ud800"), "ValueError: a b c\ufffdd\ufffd"),
        (KeyError(), "KeyError"),
        (Unspeakable(), "Unspeakable: <str() raised ValueError>"),
    ],
)
def test_an_error_is_one_line_of_valid_text(error: Exception, line: str) -> None:
    assert error_line(error) == line


@pytest.mark.parametrize("name", ERRORS)
def test_any_error_has_a_line_and_a_traceback(name: str) -> None:
    error = ERRORS[name]()
    valid(error_line(error), traceback_text(error))


@given(st.lists(ANY_TEXT, max_size=3), st.sampled_from([ValueError, KeyError, OSError, UnicodeError, ExceptionGroup]))
def test_any_text_has_a_line_and_a_traceback(texts: list[str], kind: Any) -> None:
    error = ExceptionGroup("".join(texts), [ValueError(*texts)]) if kind is ExceptionGroup else kind(*texts)
    valid(error_line(error), traceback_text(error))


@given(ANY_TEXT)
def test_only_line_ends_and_what_cannot_be_stored_are_replaced(text: str) -> None:
    line = one_line(text)
    assert len(line) <= len(text)
    assert all(
        after == before or after in " \ufffd" for after, before in zip(line, text.replace("\r\n", "\n"), strict=True)
    )


def test_long_errors_and_tracebacks_are_cut() -> None:
    error = ValueError("é" * 3_000_000)
    assert len(error_line(error)) == ERROR_CHARACTERS
    assert TRACEBACK_BYTES - 100 < len(traceback_text(error).encode()) <= TRACEBACK_BYTES
    assert len(traceback_text(chained(10_000)).encode()) <= TRACEBACK_BYTES


@pytest.mark.parametrize("name", ERRORS)
def test_celery_is_given_an_error_that_it_can_take(name: str) -> None:
    given_one = told(ERRORS[name]())
    assert isinstance(given_one, Exception)
    assert len(repr(given_one)) < 2 * ERROR_CHARACTERS
    assert type(given_one).__name__


def told(error: BaseException) -> BaseException:
    return error_for_celery(error, error_line(error), traceback_text(error))


def test_celery_is_given_the_error_itself_where_it_can_be() -> None:
    for name in ("nul", "emoji", "two_parts", "unpicklable", "unspeakable", "group", "chain", "key"):
        error = ERRORS[name]()
        assert told(error) is error
    for name in ("long", "untouchable", "unmentionable", "worse_pickle", "nameless", "fundamental", "memory"):
        error = ERRORS[name]()
        instead = told(error)
        assert str(instead) == error_line(error)
        assert pickle.loads(pickle.dumps(instead)).args == instead.args


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
def test_the_end_of_a_process_stays_one(error: BaseException) -> None:
    assert told(error) is error


def test_what_stands_in_for_an_error_shows_where_it_came_from() -> None:
    with pytest.raises(ValueError, match="é") as caught:
        raise ERRORS["long"]()
    assert "in test_what_stands_in" in traceback_text(told(caught.value))

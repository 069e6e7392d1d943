"""What a task returns, as JSON; what JSON cannot hold is refused by the name of its type."""

from __future__ import annotations

import dataclasses
import json
from collections import deque
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from celery_jobs.client import ResultNotJson
from celery_jobs.client.results import LONGEST_ERROR, jsonable, one_line


class Point(BaseModel):
    x: float
    at: datetime | None = None


@dataclasses.dataclass
class Plain:
    name: str
    inner: Any = None


class Colour(Enum):
    RED = "red"


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (None, None),
        (42, 42),
        ("text", "text"),
        ([1, (2, 3), deque([4])], [1, [2, 3], [4]]),
        (Point(x=1, at=datetime(2026, 1, 2, tzinfo=UTC)), {"x": 1.0, "at": "2026-01-02T00:00:00Z"}),
        (Plain("a", Point(x=2)), {"name": "a", "inner": {"x": 2.0, "at": None}}),
        ({"d": date(2026, 1, 2), "u": UUID(int=1)}, {"d": "2026-01-02", "u": str(UUID(int=1))}),
        ([Decimal("1.5"), timedelta(seconds=90)], ["1.5", "PT1M30S"]),
        (Colour.RED, "red"),
        (Path("/a"), "/a"),
        ([float("nan"), float("inf"), [-float("inf")]], [None, None, [None]]),
        (Point(x=float("nan")), {"x": None, "at": None}),
        ({1: "a", 2: "b"}, {"1": "a", "2": "b"}),
        ("half \ud800 a pair", "half � a pair"),
        ({"\udfff": "\ud800"}, {"�": "�"}),
        (10**399, 10**399),
    ],
)
def test_a_result_becomes_plain_json(value: Any, plain: Any) -> None:
    assert jsonable(value) == plain
    json.dumps(jsonable(value), allow_nan=False, ensure_ascii=False).encode("utf-8")


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (b"bytes", "bytes"),
        (bytearray(b"x"), "bytearray"),
        ({1, 2}, "set"),
        (frozenset(), "frozenset"),
        ({"deep": [{"er": {3}}]}, "set"),
        ({b"key": 1}, "bytes"),
        ((number for number in range(3)), "generator"),
        (object(), "object"),
        ([object()], "object"),
        (Plain("a", b"x"), "bytes"),
        (lambda: None, "function"),
        (ValueError("x"), "ValueError"),
    ],
)
def test_what_json_cannot_hold_is_refused_by_name(value: Any, kind: str) -> None:
    with pytest.raises(ResultNotJson, match=rf"^{kind} cannot be written as JSON"):
        jsonable(value)


def test_what_refers_to_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(ResultNotJson, match="refers to itself"):
        jsonable(loop)


def test_two_keys_that_are_one_text_are_refused() -> None:
    with pytest.raises(ResultNotJson, match="two keys"):
        jsonable({1: "a", "1": "b"})
    with pytest.raises(ResultNotJson, match="two keys"):
        jsonable(dict.fromkeys(["\ud800", "\udfff"]))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(json_values)
def test_json_stays_what_it_is(value: Any) -> None:
    assert jsonable(value) == value


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("angle"), "ValueError: angle"),
        (ValueError(), "ValueError"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (Unspeakable(), "Unspeakable: (its text cannot be had: RuntimeError)"),
        (ValueError("\ud800"), "ValueError: �"),
    ],
)
def test_an_error_is_its_type_and_text(error: BaseException, line: str) -> None:
    assert one_line(error) == line


def test_a_long_error_is_cut() -> None:
    assert len(one_line(ValueError("x" * 3_000_000))) == LONGEST_ERROR

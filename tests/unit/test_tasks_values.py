"""What goes in and comes out of a job: arguments, results, error texts."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from pydantic import BaseModel
from ulid import ULID

from celery_jobs.records.errors import ArgumentsInvalid
from celery_jobs.tasks.arguments import Arguments
from celery_jobs.tasks.failures import ERROR_CHARACTERS, TRACEBACK_BYTES, error_line, traceback_text
from celery_jobs.tasks.results import ResultNotStorable, encode_result


class Point(BaseModel):
    x: int


@dataclass
class Pair:
    a: int


def draw(point: Point, when: datetime, scale: float = 1.0) -> None: ...


ARGUMENTS = Arguments("draw", draw)
GOOD = b'{"point": {"x": 1}, "when": "2026-01-02T03:04:05Z"}'


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (float("nan"), "null"),
        ([1.5, float("inf")], "[1.5,null]"),
        ({1: "a"}, '{"1":"a"}'),
        ("a\ud800b", '"a\ufffdb"'),
        (Point(x=1), '{"x":1}'),
        (Pair(2), '{"a":2}'),
        (datetime(2026, 1, 2, tzinfo=UTC), '"2026-01-02T00:00:00Z"'),
        (UUID(int=1), '"00000000-0000-0000-0000-000000000001"'),
        (Decimal("1.50"), '"1.50"'),
        (ULID.from_int(0), '"00000000000000000000000000"'),
        (10**400, "1" + "0" * 400),
    ],
)
def test_results_are_strict_json(value: Any, text: str) -> None:
    assert encode_result(value, 10_000) == text
    json.loads(text)


@pytest.mark.parametrize("value", [b"x", {1}, object(), [bytearray()], {"a": frozenset()}, (n for n in "ab")])
def test_what_json_cannot_hold_is_refused_by_the_name_of_its_type(value: Any) -> None:
    inner = next(iter(value.values())) if isinstance(value, dict) else value[0] if isinstance(value, list) else value
    with pytest.raises(ResultNotStorable, match=type(inner).__name__):
        encode_result(value, 10_000)


def test_a_result_over_its_limit_and_one_that_holds_itself_are_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(ResultNotStorable, match="JOBS_MAX_RESULT_BYTES"):
        encode_result("x" * 100, 50)
    with pytest.raises(ResultNotStorable):
        encode_result(endless, 10_000)


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


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


def test_long_errors_and_tracebacks_are_cut() -> None:
    error = ValueError("é" * 3_000_000)
    assert len(error_line(error)) == ERROR_CHARACTERS
    assert len(traceback_text(error).encode()) <= TRACEBACK_BYTES


def test_arguments_are_checked_strictly_and_arrive_typed() -> None:
    assert json.loads(ARGUMENTS.check_json(GOOD)) == json.loads(GOOD)
    args, kwargs = ARGUMENTS.load((), json.loads(GOOD))
    assert [*args, *kwargs.values()] == [Point(x=1), datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)]


@pytest.mark.parametrize(
    ("body", "where"),
    [
        (b"{", ["body"]),
        (b"[]", ["body"]),
        (b'{"point": {"x": 1}, "when": "2026-01-02T03:04:05Z", "scale": NaN}', ["body"]),
        (b'{"point": {"x": 1}, "when": "2026-01-02T03:04:05Z", "scale": 1e999}', ["body"]),
        (b'{"point": {"x": true}, "when": "2026-01-02T03:04:05Z"}', ["body", "point", "x"]),
        (b'{"point": {"x": 1}, "when": "2026-01-02T03:04:05Z", "more": 1}', ["body", "more"]),
        (b'{"when": "2026-01-02T03:04:05Z"}', ["body", "point"]),
    ],
)
def test_bad_arguments_name_the_place(body: bytes, where: list[str]) -> None:
    with pytest.raises(ArgumentsInvalid) as caught:
        ARGUMENTS.check_json(body)
    assert caught.value.errors[0]["loc"] == where

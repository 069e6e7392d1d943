"""What goes in and comes out of a job: arguments and results."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel
from ulid import ULID

from celery_jobs.records.errors import ArgumentsInvalid
from celery_jobs.tasks.arguments import Arguments
from celery_jobs.tasks.results import DEEPEST, ResultNotStorable, decode_result, encode_result
from tests.support.strict import strict
from tests.support.value_tasks import Record, doubled, nested


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


LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.decimals()
    | st.dates()
    | st.uuids()
    | st.text(st.characters(codec=None), max_size=5)
)
ODD = st.binary(max_size=3) | st.frozensets(st.integers(), max_size=2) | st.builds(object)
KEYS = st.text(st.characters(codec=None), max_size=3) | st.integers() | st.floats() | st.none() | st.booleans()


def containers(inside: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    several = st.lists(inside, max_size=4)
    return several | several.map(tuple) | st.dictionaries(KEYS, inside, max_size=4) | st.builds(Record, inside)


def tried(value: Any) -> tuple[str, str]:
    """The text of the result, or why there is none."""
    try:
        return encode_result(value, 1 << 20), ""
    except ResultNotStorable as error:
        return "", str(error)


@given(st.recursive(LEAVES, containers, max_leaves=15))
def test_any_plain_value_is_strict_json_or_two_of_its_keys_are_alike(value: Any) -> None:
    text, reason = tried(value)
    if reason:
        assert "two keys" in reason
    else:
        assert repr(strict(text.encode())) == repr(decode_result(text))
        assert encode_result(decode_result(text), 1 << 20) == text


@given(st.recursive(LEAVES | ODD, containers, max_leaves=15))
def test_any_value_gives_valid_text_or_a_reason(value: Any) -> None:
    text, reason = tried(value)
    assert bool(text) is not bool(reason)
    if text:
        strict(text.encode())


@given(st.integers(1, 300))
def test_what_is_kept_can_be_read_at_any_depth(levels: int) -> None:
    if levels > DEEPEST:
        with pytest.raises(ResultNotStorable, match="nested"):
            encode_result(nested(levels), 10_000)
    else:
        assert decode_result(encode_result(nested(levels), 10_000)) == nested(levels)


@pytest.mark.parametrize("value", [doubled(60), ["x" * 1_000_000] * 1_000_000, {"a": ["x" * 99] * 10}])
def test_a_result_that_would_be_too_large_is_refused_before_it_is_written(value: Any) -> None:
    with pytest.raises(ResultNotStorable, match=r"JOBS_MAX_RESULT_BYTES \(500\)"):
        encode_result(value, 500)


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


@pytest.mark.parametrize("body", [b'{"v": {"__type__": 1, "__value__": 2}}', b'{"__value__": 2, "__type__": "uuid"}'])
def test_what_celery_messages_spell_their_own_values_with_is_refused(body: bytes) -> None:
    def anything(**more: Any) -> None: ...

    with pytest.raises(ArgumentsInvalid, match="do not fit"):
        Arguments("anything", anything).check_json(body)


@pytest.mark.parametrize("name", ["_x", "model_config", "schema", "copy", "self", "argument_0", "é"])
def test_a_parameter_may_have_any_name(name: str, recwarn: pytest.WarningsRecorder) -> None:
    scope: dict[str, Any] = {}
    exec(f"def function({name}: int): ...", scope)
    arguments = Arguments("function", scope["function"])
    assert arguments.schema["required"] == [name]
    assert list(arguments.schema["properties"]) == [name]
    assert json.loads(arguments.check_json(json.dumps({name: 1}).encode())) == {name: 1}
    for body in (b"{}", json.dumps({name: "1"}).encode(), json.dumps({name: 1, "other": 1}).encode()):
        with pytest.raises(ArgumentsInvalid):
            arguments.check_json(body)
    assert not recwarn.list


def test_arguments_reach_parameters_of_every_kind_with_their_types() -> None:
    def every(first: int, second: date, /, third: date, *rest: date, fourth: int = 4, **more: date) -> None: ...

    arguments = Arguments("every", every)
    day, text = date(2026, 1, 2), "2026-01-02"
    sent = json.loads(
        arguments.check_json(b'{"first": 1, "second": "%s", "third": "%s", "more": "%s"}' % ((text.encode(),) * 3))
    )
    assert arguments.load((), sent) == ((1, day, day), {"more": day})
    assert arguments.load((1, text, text, text), {"fourth": 5}) == ((1, day, day, day), {"fourth": 5})
    for body in (b'{"first": 1}', b'{"first": 1, "second": "x", "third": "2026-01-02"}'):
        with pytest.raises(ArgumentsInvalid):
            arguments.check_json(body)
    with pytest.raises(ArgumentsInvalid) as caught:
        arguments.check_json(b'{"first": 1, "second": "%s", "third": "%s", "more": "x"}' % ((text.encode(),) * 2))
    assert caught.value.errors[0]["loc"] == ["body", "more"]


def test_many_faults_are_told_in_part() -> None:
    with pytest.raises(ArgumentsInvalid) as caught:
        ARGUMENTS.check_json(json.dumps(dict.fromkeys(map(str, range(1_000)))).encode())
    assert len(caught.value.errors) == 100


@given(st.binary(max_size=50) | st.text(max_size=30).map(str.encode))
def test_any_bytes_are_arguments_or_invalid(body: bytes) -> None:
    with pytest.raises(ArgumentsInvalid) as caught:
        ARGUMENTS.check_json(body)
    assert all(fault["loc"][0] == "body" and fault["msg"] for fault in caught.value.errors)

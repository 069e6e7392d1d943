"""Payloads of remote tasks: checked against the registered schema, each fault named by its field."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import BaseModel

from celery_jobs.api.joblib import payload as problems
from celery_jobs.api.payloads import check
from celery_jobs.api.payloads.check import SchemaUnusable
from celery_jobs.api.payloads.checker import Checker
from celery_jobs.records.errors import PayloadInvalid
from celery_jobs.records.remote.registering import canonical


class Point(BaseModel):
    x: float
    y: int = 0


class Move(BaseModel):
    to: Point
    via: list[Point] = []
    name: str | None = None


def faults(payload: dict[str, Any], schema: dict[str, Any]) -> list[tuple[str | int, ...]]:
    compiled = check.validator(canonical(schema))
    found = check.faults(compiled, payload)
    assert check.fits(compiled, payload) is not bool(found)
    return [tuple(place) for place, _why, _kind in found]


def check_schema(schema: dict[str, Any]) -> None:
    check.validator(canonical(schema))


async def text_of(payload: dict[str, Any], schema: dict[str, Any]) -> str:
    return await problems.check_payload(Checker(), "room:modifiers:Move", canonical(schema), payload)


async def test_a_payload_that_fits_goes_on_as_it_is() -> None:
    text = await text_of({"to": {"x": 1}, "name": None, "more": [1]}, Move.model_json_schema())
    assert text == '{"to":{"x":1},"name":null,"more":[1]}'


@pytest.mark.parametrize(
    ("payload", "where"),
    [
        ({}, [("to",)]),
        ({"to": {}}, [("to", "x")]),
        ({"to": {"x": "1"}}, [("to", "x")]),
        ({"to": {"x": True}}, [("to", "x")]),
        ({"to": {"x": 1, "y": 1.5}, "via": [{"x": 1}, {}]}, [("to", "y"), ("via", 1, "x")]),
    ],
)
def test_each_fault_names_its_field(payload: dict[str, Any], where: list[tuple[str | int, ...]]) -> None:
    assert sorted(map(str, faults(payload, Move.model_json_schema()))) == sorted(map(str, where))


def test_a_field_too_many_is_a_fault_where_the_schema_says_so() -> None:
    schema = {"type": "object", "properties": {}, "additionalProperties": False}
    assert faults({"angel": 1}, schema) == [()]


async def test_a_refusal_says_where_and_no_more_than_people_read() -> None:
    with pytest.raises(PayloadInvalid) as refused:
        await text_of({"a": "x" * 1_000}, {"properties": {"a": {"type": "integer"}}})
    assert len(refused.value.errors[0]["msg"]) < 400
    assert refused.value.errors[0]["loc"] == ["body", "payload", "a"]


async def test_a_number_that_json_cannot_hold_is_a_fault() -> None:
    with pytest.raises(PayloadInvalid) as refused:
        await text_of({"to": {"x": float("inf")}}, {})
    assert [each["type"] for each in refused.value.errors] == ["finite_number"]


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "nonsense"},
        {"properties": []},
        {"$ref": "http://127.0.0.1:1/schema.json"},
        {"properties": {"a": {"$ref": "other.json#/x"}}},
        {"required": "a"},
        {"pattern": "("},
    ],
)
def test_a_schema_that_is_none_or_points_elsewhere_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(SchemaUnusable):
        check_schema(schema)


@pytest.mark.parametrize("levels", [150, 5_000])
async def test_a_schema_nested_without_end_is_refused(levels: int) -> None:
    schema: dict[str, Any] = {}
    for _ in range(levels):
        schema = {"not": schema}
    checker = Checker()
    with pytest.raises(SchemaUnusable):
        await problems.check_schema(checker, schema)
    checker.close()


def test_schemas_refer_to_themselves_and_to_nothing_else() -> None:
    schema = Move.model_json_schema()
    check_schema(schema)
    assert "$ref" in canonical(schema)
    with pytest.raises(SchemaUnusable):
        check_schema({"properties": {"to": {"$ref": "#/$defs/Missing"}}})


def test_a_check_takes_no_longer_for_what_was_made_to_be_slow() -> None:
    schema = {"properties": {"p": {"pattern": "^(a+)+$"}, "u": {"uniqueItems": True}}}
    assert faults({"u": [{"a": number} for number in range(20_000)]}, schema) == []
    assert faults({"p": "a" * 1_000 + "b"}, schema) == [("p",)]


def test_a_schema_may_hold_itself() -> None:
    node = {"properties": {"left": {"$ref": "#/$defs/node"}, "right": {"$ref": "#/$defs/node"}}}
    schema = {"$defs": {"node": node | {"required": ["value"]}}, "$ref": "#/$defs/node"}
    check_schema(schema)
    assert faults({"value": 1, "left": {"value": 2, "right": {}}}, schema) == [("left", "right", "value")]


def test_a_property_that_another_one_depends_on_is_missed() -> None:
    schema = {"$schema": "http://json-schema.org/draft-07/schema#", "dependencies": {"card": ["address"]}}
    assert faults({"card": "1"}, schema) == [("address",)]
    assert faults({"card": "1", "address": 2}, schema) == []


@pytest.mark.parametrize("number", [10**400, -(10**30), 1e308, 0.1 + 0.2])
async def test_numbers_of_any_size_are_taken_as_they_are(number: float) -> None:
    assert json.loads(await text_of({"a": number}, {"type": "object"})) == {"a": number}


def test_equal_schemas_are_equal_texts_and_one_is_not_true() -> None:
    assert canonical({"a": 1, "b": {"d": 1, "c": 2}}) == canonical({"b": {"c": 2, "d": 1}, "a": 1})
    assert canonical({"const": 1}) != canonical({"const": True})

"""Which fields of a payload are wrong, in bounded time.

Whether a value is valid the validator always knows soon; to name its faults it goes every way that leads to them, and
their number may double with each level of a payload whose schema refers to itself. So it is asked to name them only
where few ways are counted; where there are more, the first wrong field is found by asking, part by part, what is valid.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from typing import Any, Final, cast

import jsonschema_rs
from pydantic_core import from_json

from celery_jobs.api.payloads.effort import REFERENCES, part_of, steps_of

Place = tuple[str | int, ...]

# patterns that take linear time, and nothing from elsewhere
_OPTIONS: Final[dict[str, Any]] = {"pattern_options": jsonschema_rs.RegexOptions(), "offline": True}
_MOST_WAYS: Final = 2_000  # naming takes up to 0.05 ms a way
_MOST_FAULTS: Final = 100
_SAME_VALUE: Final = ("not", "if", "then", "else")
_SAME_VALUE_EACH: Final = ("allOf", "anyOf", "oneOf")
_PROPERTIES: Final = ("additionalProperties", "unevaluatedProperties")
_ITEMS: Final = ("items", "additionalItems", "unevaluatedItems", "contains")
_LEADS_ON: Final = {
    *(*REFERENCES, *_SAME_VALUE, *_SAME_VALUE_EACH, *_PROPERTIES, *_ITEMS),
    *("properties", "patternProperties", "propertyNames", "dependentSchemas", "dependencies"),
    *("prefixItems", "minContains", "maxContains", "$defs", "definitions", "$schema", "$id"),
}
# a value is valid only if it is so by each of these parts
_BINDING: Final = ("$ref", "allOf", "properties", "prefixItems", "items", "additionalProperties")


def validator(schema_json: str) -> jsonschema_rs.Validator:
    """For the whole schema."""
    return _compiled(schema_json)[1]


def faults(schema_json: str, payload: dict[str, Any]) -> Iterator[tuple[Place, str, str]]:
    """The place, message and kind of each fault, at most 100; only of the first where it would take too long."""
    schema, whole = _compiled(schema_json)
    if whole.is_valid(payload):
        return
    if not _has_few_ways(schema, payload):
        yield _first_wrong(schema_json, schema, payload)
        return
    for number, error in enumerate(whole.iter_errors(payload)):
        if number == _MOST_FAULTS:
            return
        yield _named(error)


@lru_cache(maxsize=256)
def _compiled(schema_json: str) -> tuple[Any, jsonschema_rs.Validator]:
    schema = from_json(schema_json)
    return schema, jsonschema_rs.validator_for(schema, **_OPTIONS)


@lru_cache(maxsize=16)
def _parts(schema_json: str) -> jsonschema_rs.ValidatorMap:
    return jsonschema_rs.validator_map_for(from_json(schema_json), **_OPTIONS)


@dataclass(frozen=True, slots=True)
class _At:
    """A part of the schema, and the value that it is about."""

    pointer: str
    schema: Any
    value: Any
    place: Place = ()
    binding: bool = True

    @property
    def keywords(self) -> dict[str, Any]:
        """What the part says; nothing for true and false."""
        return {} if isinstance(self.schema, bool) else cast("dict[str, Any]", self.schema)

    def under(self, keyword: str, key: str | int | None, schema: Any) -> _At:
        """A part below this one, about the same value."""
        below = keyword if key is None else f"{keyword}/{_escaped(str(key))}"
        return _At(f"{self.pointer}/{below}", schema, self.value, self.place, keyword in _BINDING)

    def of(self, key: str | int, value: Any) -> _At:
        """The same part, about a value inside."""
        return _At(self.pointer, self.schema, value, (*self.place, key), self.binding)


def _has_few_ways(schema: Any, payload: Any) -> bool:
    left, rest = _MOST_WAYS, [_At("#", schema, payload)]
    while rest and left:
        left -= 1
        at = rest.pop()
        if at.schema is None:  # a reference by name, which is not followed here
            return False
        rest.extend(islice(_next(schema, at), left + 1))
    return not rest


def _first_wrong(schema_json: str, schema: Any, payload: Any) -> tuple[Place, str, str]:
    parts = _parts(schema_json)
    at, been = _At("#", schema, payload), set[tuple[str, Place]]()
    while (at.pointer, at.place) not in been:
        been.add((at.pointer, at.place))
        for below in _next(schema, at):
            check = parts.get(below.pointer) if below.binding else None
            if check is not None and not check.is_valid(below.value):
                at = below
                break
    return _own_fault(at) or (at.place, "does not match the schema here", "schema")


def _own_fault(at: _At) -> tuple[Place, str, str] | None:
    """What is wrong by what the part demands itself, without the parts below it."""
    own = {name: item for name, item in at.keywords.items() if name not in _LEADS_ON}
    error = next(jsonschema_rs.validator_for(own, **_OPTIONS).iter_errors(at.value), None)
    return None if error is None else _named(error, at.place)


def _named(error: jsonschema_rs.ValidationError, place: Place = ()) -> tuple[Place, str, str]:
    return (*place, *error.instance_path, *_missing(error)), error.message, str(error.kind.name)


def _next(root: Any, at: _At) -> Iterator[_At]:
    """The parts that a check goes on to, or more."""
    kind = cast("type[object]", type(at.value))
    for keyword, item in at.keywords.items():
        if keyword in REFERENCES:
            pointer = "#" + "".join(f"/{_escaped(step)}" for step in steps_of(item))
            yield _At(pointer, part_of(root, item), at.value, at.place, keyword in _BINDING)
        elif keyword in _SAME_VALUE:
            yield at.under(keyword, None, item)
        elif keyword in _SAME_VALUE_EACH:
            yield from (at.under(keyword, number, each) for number, each in enumerate(item))
        elif kind is dict:
            yield from _about_properties(at, keyword, item, at.value)
        elif kind is list:
            yield from _about_items(at, keyword, item, at.value)


def _about_properties(at: _At, keyword: str, item: Any, value: dict[str, Any]) -> Iterator[_At]:
    if keyword == "properties":
        yield from (at.under(keyword, name, item[name]).of(name, value[name]) for name in item if name in value)
    elif keyword == "patternProperties":
        for pattern in item:
            below = at.under(keyword, pattern, item[pattern])
            yield from (below.of(name, each) for name, each in value.items())
    elif keyword in _PROPERTIES:
        named, below = at.keywords.get("properties", {}), at.under(keyword, None, item)
        if "patternProperties" in at.keywords:
            below = replace(below, binding=False)  # it does not bind what a pattern names
        yield from (below.of(name, each) for name, each in value.items() if name not in named)
    elif keyword in ("dependentSchemas", "dependencies"):
        yield from (at.under(keyword, name, item[name]) for name in item if name in value)


def _about_items(at: _At, keyword: str, item: Any, value: Sequence[Any]) -> Iterator[_At]:
    if keyword == "prefixItems" or (keyword == "items" and isinstance(item, list)):
        for number, (part, each) in enumerate(zip(cast("list[Any]", item), value, strict=False)):
            yield at.under(keyword, number, part).of(number, each)
    elif keyword in _ITEMS:
        below = at.under(keyword, None, item)
        first = len(at.keywords.get("prefixItems", ())) if keyword == "items" else 0
        yield from (below.of(number, value[number]) for number in range(first, len(value)))


def _escaped(step: str) -> str:
    return step.replace("~", "~0").replace("/", "~1")


def _missing(error: jsonschema_rs.ValidationError) -> Sequence[str]:
    """The field that is missing, which the place of the fault does not name."""
    kind: Any = error.kind
    return (str(kind.property),) if isinstance(kind, jsonschema_rs.ValidationErrorKind.Required) else ()

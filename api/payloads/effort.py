"""How much work a schema may make, before it is done: the parts that a check goes through, references followed."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final, cast
from urllib.parse import unquote

from pydantic_core import from_json

REFERENCES: Final = ("$ref", "$dynamicRef", "$recursiveRef")
# up to 0.15 µs a unit
_LIGHT: Final = 500_000
_LIGHT_SCHEMA: Final = 2_000
_LIGHT_LENGTH: Final = 20_000
# a pattern costs up to its size for each character, a division by a tiny number an arithmetic of very long ones
_HEAVY: Final = {"pattern": 250, "patternProperties": 250, "multipleOf": 700, "uniqueItems": 50}


def is_light(schema_json: str, length: int = 0) -> bool:
    """Whether a payload of so many characters is checked in some ms, the schema's compiling included."""
    if len(schema_json) > _LIGHT_LENGTH:
        return False
    try:
        effort = effort_of(schema_json)
    except (ValueError, RecursionError):  # nested too deeply, which the check says better
        return False
    return effort <= _LIGHT_SCHEMA and effort * length <= _LIGHT


@lru_cache(maxsize=256)
def effort_of(schema_json: str) -> int:
    """Units of work for each character of a payload, at most; for a schema that holds itself, each way but back."""
    schema = from_json(schema_json)
    return _reached(schema, schema, {})


def part_of(schema: Any, reference: str) -> Any:
    """What a reference within the schema points to; None where it is no path."""
    for step in steps_of(reference):
        schema = cast("dict[str, Any]", schema).get(step) if isinstance(schema, dict) else None
    return schema


def steps_of(reference: str) -> list[str]:
    """The keys on the way to what a reference points to."""
    steps = unquote(reference.removeprefix("#")).split("/")
    return [step.replace("~1", "/").replace("~0", "~") for step in steps[1:]] if not steps[0] else [reference]


def _reached(value: Any, root: Any, counted: dict[str, int]) -> int:
    if isinstance(value, list):
        return sum(_reached(item, root, counted) for item in cast("list[Any]", value))
    if not isinstance(value, dict):
        return 0
    total = 1
    for name, item in cast("dict[str, Any]", value).items():
        if name in REFERENCES and isinstance(item, str):
            if item not in counted:
                counted[item] = 1  # while it is counted itself
                counted[item] = _reached(part_of(root, item), root, counted)
            total += counted[item]
        elif name == "enum" and isinstance(item, list):
            total += len(cast("list[Any]", item))
        elif name not in ("$defs", "definitions", "const"):
            times = len(cast("dict[str, Any]", item)) if name == "patternProperties" and isinstance(item, dict) else 1
            total += _HEAVY.get(name, 0) * times + _reached(item, root, counted)
    return total

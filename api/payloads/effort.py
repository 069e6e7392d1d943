"""How much work a schema makes at most, where that can be said before it is done.

Only of what people usually write, such as Pydantic's schemas of models: any other keyword, a reference that leads
nowhere through keys, a schema that holds itself: nothing is known of those.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final, cast
from urllib.parse import unquote

from pydantic_core import from_json

_LIGHT_LENGTH: Final = 20_000  # of a schema
_LIGHT_SCHEMA: Final = 2_000
_LIGHT: Final = 500_000  # up to 0.15 µs a unit
_NAMED: Final = 15_000  # up to 20 µs a unit, since naming a fault costs more than finding it

# one look each, however they are written; without $schema a format is a remark
_PLAIN: Final = {
    *("type", "title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "discriminator"),
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minLength", "maxLength", "format", "$comment"),
    *("minItems", "maxItems", "minProperties", "maxProperties"),
}
_DEFINITIONS: Final = {"$defs", "definitions"}
_ONE: Final = {"items", "additionalProperties"}
_EACH: Final = {"anyOf", "oneOf", "allOf", "prefixItems"}
_LISTED: Final = {"enum", "required", "const"}


def is_light(schema_json: str, length: int = 0) -> bool:
    """Whether it is known soon, in less than 0.1 s at worst, if a payload of so many characters fits."""
    if len(schema_json) > _LIGHT_LENGTH:
        return False
    effort = effort_of(schema_json)
    return effort is not None and effort <= _LIGHT_SCHEMA and effort * length <= _LIGHT


def is_named_soon(schema_json: str, length: int) -> bool:
    """Whether all that is wrong with a payload is named as soon, where the schema is light."""
    return (effort_of(schema_json) or _NAMED) * length <= _NAMED


@lru_cache(maxsize=256)
def effort_of(schema_json: str) -> int | None:
    """Units of work for each character of a payload, at most; None where it is not known."""
    try:
        schema = from_json(schema_json)
        return _effort(schema, schema, {})
    except (_UnknownError, ValueError, RecursionError, TypeError, AttributeError):
        return None  # or it is no schema at all, which the check says better


class _UnknownError(Exception):
    pass


def _effort(part: Any, root: Any, counted: dict[str, int | None]) -> int:
    if isinstance(part, bool):
        return 1
    if not isinstance(part, dict):
        raise _UnknownError
    total = 1
    for keyword, item in cast("dict[str, Any]", part).items():
        if keyword in _PLAIN:
            total += 1
        elif keyword in _LISTED:
            total += _leaves(item)
        elif keyword == "properties":
            total += sum(1 + _effort(each, root, counted) for each in item.values())
        elif keyword in _ONE:
            total += _effort(item, root, counted)
        elif keyword in _EACH:
            total += sum(_effort(each, root, counted) for each in item)
        elif keyword == "$ref":
            total += _referred(item, root, counted)
        elif keyword not in _DEFINITIONS:
            raise _UnknownError
    return total


def _referred(reference: str, root: Any, counted: dict[str, int | None]) -> int:
    if reference not in counted:
        counted[reference] = None  # while it is counted itself
        counted[reference] = _effort(_part(root, reference), root, counted)
    effort = counted[reference]
    if effort is None:
        raise _UnknownError
    return effort


def _part(root: Any, reference: str) -> Any:
    first, *steps = unquote(reference).split("/")
    if first != "#":
        raise _UnknownError
    for step in steps:
        if not isinstance(root, dict):
            raise _UnknownError
        root = cast("dict[str, Any]", root).get(step.replace("~1", "/").replace("~0", "~"))
    return root


def _leaves(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + sum(map(_leaves, cast("dict[str, Any]", value).values()))
    if isinstance(value, list):
        return 1 + sum(map(_leaves, cast("list[Any]", value)))
    return 1 + len(value) // 100 if isinstance(value, str) else 1

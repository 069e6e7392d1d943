"""What is wrong with a schema or a payload, however long it takes. Loads nothing but the validator, for child.py."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Final, cast

import jsonschema_rs
from pydantic_core import from_json

Place = Sequence[str | int]
Fault = tuple[Place, str, str]  # where, why, and the kind

_MOST_FAULTS: Final = 100
_LONGEST_MESSAGE: Final = 300
_DEEPEST: Final = 100
_REFERENCES: Final = ("$ref", "$dynamicRef", "$recursiveRef")
# patterns without look-around and back-references, which take linear time; and nothing from elsewhere
_OPTIONS: Final[dict[str, Any]] = {"pattern_options": jsonschema_rs.RegexOptions(), "offline": True}


class SchemaUnusable(ValueError):
    """The schema cannot be used to check payloads; says why."""


def validator(schema_json: str) -> jsonschema_rs.Validator:
    """The compiled schema; SchemaUnusable unless it is a JSON schema that stands by itself."""
    try:
        schema = from_json(schema_json)
        outside = next(_references(schema), None)
        if outside is None:
            return jsonschema_rs.validator_for(schema, **_OPTIONS)
    except jsonschema_rs.ValidationError as error:
        where = ".".join(map(str, error.instance_path))
        raise SchemaUnusable(f"not a JSON schema{f' at {where}' if where else ''}: {_cut(error.message)}") from None
    except (RecursionError, TypeError, ValueError) as error:
        raise SchemaUnusable(f"not a usable JSON schema: {_cut(str(error))}") from None
    raise SchemaUnusable(f"refers to {outside!r}; only references within the schema (#…) are followed")


def _references(value: Any, depth: int = 0) -> Iterator[str]:
    if depth > _DEEPEST:
        raise ValueError("it is nested too deeply")
    if isinstance(value, dict):
        for name, item in cast("dict[str, Any]", value).items():
            if name in _REFERENCES and isinstance(item, str) and not item.startswith("#"):
                yield item
            yield from _references(item, depth + 1)
    elif isinstance(value, list):
        for item in cast("list[Any]", value):
            yield from _references(item, depth + 1)


def fits(compiled: jsonschema_rs.Validator, payload: Any) -> bool:
    """Whether nothing is wrong."""
    try:
        return compiled.is_valid(payload)
    except (ValueError, RecursionError):  # `faults` says which
        return False


def faults(compiled: jsonschema_rs.Validator, payload: Any) -> list[Fault]:
    """What is wrong, field by field: the first 100."""
    try:
        return [_fault(each) for each in islice(compiled.iter_errors(payload), _MOST_FAULTS)]
    except (ValueError, RecursionError) as error:  # a number or a nesting that no validator takes
        return [((), f"it cannot be checked: {_cut(str(error))}", "schema")]


def _fault(error: jsonschema_rs.ValidationError) -> Fault:
    kind: Any = error.kind
    place = list(error.instance_path)
    if isinstance(kind, jsonschema_rs.ValidationErrorKind.Required):
        place.append(str(kind.property))  # the field that is missing, which the path does not name
    return [_cut(step) if isinstance(step, str) else step for step in place], _cut(error.message), str(kind.name)


def _cut(message: str) -> str:
    return message if len(message) <= _LONGEST_MESSAGE else f"{message[:_LONGEST_MESSAGE]}…"

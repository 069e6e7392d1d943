"""What is wrong with a schema or a payload; as long as it takes. Loads nothing but the validator: child.py runs it too.

The validator's patterns take linear time, since a schema is anybody's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, cast

import jsonschema_rs
from pydantic_core import from_json

from celery_jobs.api.payloads import faults
from celery_jobs.api.payloads.effort import REFERENCES, effort_of

Fault = tuple[faults.Place, str, str]  # where, why, and the kind

_LONGEST_MESSAGE: Final = 300
_DEEPEST: Final = 100
_MOST_EFFORT: Final = 100_000


class SchemaUnusable(ValueError):
    """The schema cannot be used to check payloads; says why."""


def check_schema(schema_json: str) -> None:
    """SchemaUnusable unless it is a JSON schema that stands by itself."""
    try:
        outside = next(_references(from_json(schema_json)), None)
        if outside is None:
            faults.validator(schema_json)
            if effort_of(schema_json) > _MOST_EFFORT:
                raise SchemaUnusable("its references lead to its parts too often to be checked in time")
            return
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
            if name in REFERENCES and isinstance(item, str) and not item.startswith("#"):
                yield item
            yield from _references(item, depth + 1)
    elif isinstance(value, list):
        for item in cast("list[Any]", value):
            yield from _references(item, depth + 1)


def check_payload(schema_json: str, payload: Any) -> list[Fault]:
    """The faults of a payload, field by field."""
    try:
        return [(place, _cut(message), kind) for place, message, kind in faults.faults(schema_json, payload)]
    except (ValueError, RecursionError) as error:  # a number or a nesting that no validator takes
        return [((), f"it cannot be checked: {_cut(str(error))}", "schema")]


def _cut(message: str) -> str:
    return message if len(message) <= _LONGEST_MESSAGE else f"{message[:_LONGEST_MESSAGE]}…"

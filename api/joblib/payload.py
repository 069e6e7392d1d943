"""Schemas of registered jobs: what may be registered, and what is wrong with a payload, field by field.

Checked by a validator whose patterns take linear time: a schema is anybody's, and the check runs between all requests.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, cast

import jsonschema_rs
from pydantic_core import from_json, to_json

from celery_jobs.api.joblib.faults import REFERENCES, faults, part_of, validator
from celery_jobs.records.errors import PayloadInvalid
from celery_jobs.records.remote.registering import canonical

_LONGEST_MESSAGE: Final = 300
_DEEPEST: Final = 100
_MOST_REACHED: Final = 100_000


class SchemaUnusable(ValueError):
    """The schema cannot be used to check payloads; says why."""


def check_schema(schema: dict[str, Any]) -> str:
    """The schema as text; SchemaUnusable unless it is a JSON schema that stands by itself."""
    try:
        outside = next(_references(schema), None)
        if outside is None:
            text = canonical(schema)
            validator(text)
            if _reached(schema, schema, {}) > _MOST_REACHED:
                raise SchemaUnusable("its references lead to its parts too often to be checked in time")
            return text
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


def _reached(value: Any, root: dict[str, Any], counted: dict[str, int]) -> int:
    """How many parts a check may go through, references followed; the way back into a part counts once."""
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
        elif name not in ("$defs", "definitions"):
            total += _reached(item, root, counted)
    return total


def check_payload(full_name: str, schema_json: str, payload: dict[str, Any]) -> str:
    """The payload as JSON text; PayloadInvalid with one entry a fault."""
    text = to_json(payload, inf_nan_mode="constants").decode()
    if ("Infinity" in text or "NaN" in text) and not _is_strict(text):  # such as 1e999, which is well formed
        raise PayloadInvalid(full_name, [_fault([], "a number is too large, or is none", "finite_number")])
    found = list(_faults(schema_json, payload))
    if found:
        raise PayloadInvalid(full_name, found)
    return text


def _is_strict(text: str) -> bool:
    try:
        from_json(text, allow_inf_nan=False)
    except ValueError:
        return False
    return True


def _faults(schema_json: str, payload: dict[str, Any]) -> Iterator[dict[str, Any]]:
    try:
        for place, message, kind in faults(schema_json, payload):
            yield _fault(place, _cut(message), kind)
    except (ValueError, RecursionError) as error:  # a number or a nesting that no validator takes
        yield _fault([], f"it cannot be checked: {_cut(str(error))}", "schema")


def _fault(place: Sequence[str | int], message: str, kind: str) -> dict[str, Any]:
    return {"loc": ["body", "payload", *place], "msg": message, "type": kind}


def _cut(message: str) -> str:
    return message if len(message) <= _LONGEST_MESSAGE else f"{message[:_LONGEST_MESSAGE]}…"

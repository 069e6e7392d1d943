"""Schemas of registered jobs: what may be registered, and what is wrong with a payload, field by field."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, Final, cast

import jsonschema
from jsonschema.protocols import Validator
from jsonschema.validators import validator_for
from pydantic_core import from_json, to_json
from referencing import Registry
from referencing.exceptions import Unresolvable

from celery_jobs.records.errors import PayloadInvalid

_MOST_FAULTS: Final = 100
_LONGEST_MESSAGE: Final = 300
_DEEPEST: Final = 100
# nothing is fetched: a schema refers to itself only
_NOTHING_ELSE: Final[Registry[Any]] = Registry()


class SchemaUnusable(ValueError):
    """The schema cannot be used to check payloads; says why."""


def check_schema(schema: dict[str, Any]) -> None:
    """SchemaUnusable unless it is a JSON schema that stands by itself."""
    try:
        cls = validator_for(schema, default=jsonschema.Draft202012Validator)
        cls.check_schema(schema)
        outside = next(_references(schema), None)
    except jsonschema.SchemaError as error:
        where = ".".join(map(str, error.absolute_path))
        raise SchemaUnusable(f"not a JSON schema{f' at {where}' if where else ''}: {_cut(error.message)}") from None
    except (RecursionError, TypeError, ValueError) as error:
        raise SchemaUnusable(f"not a usable JSON schema: {_cut(str(error))}") from None
    if outside is not None:
        raise SchemaUnusable(f"refers to {outside!r}; only references within the schema (#…) are followed")


def _references(value: Any, depth: int = 0) -> Iterator[str]:
    if depth > _DEEPEST:
        raise ValueError("it is nested too deeply")
    if isinstance(value, dict):
        for name, item in cast("dict[str, Any]", value).items():
            if name in ("$ref", "$dynamicRef", "$recursiveRef") and isinstance(item, str) and not item.startswith("#"):
                yield item
            yield from _references(item, depth + 1)
    elif isinstance(value, list):
        for item in cast("list[Any]", value):
            yield from _references(item, depth + 1)


def check_payload(full_name: str, schema_json: str, payload: dict[str, Any]) -> str:
    """The payload as JSON text; PayloadInvalid with one entry a fault."""
    text = to_json(payload, inf_nan_mode="constants").decode()
    if ("Infinity" in text or "NaN" in text) and not _is_strict(text):  # such as 1e999, which is well formed
        raise PayloadInvalid(full_name, [_fault([], "a number is too large", "finite_number")])
    try:
        faults = list(_faults(_validator(schema_json), payload))
    except (RecursionError, Unresolvable) as error:
        faults = [_fault([], f"the schema cannot be applied: {_cut(str(error))}", "schema")]
    if faults:
        raise PayloadInvalid(full_name, faults)
    return text


def _is_strict(text: str) -> bool:
    try:
        from_json(text, allow_inf_nan=False)
    except ValueError:
        return False
    return True


@lru_cache(maxsize=256)
def _validator(schema_json: str) -> Validator:
    schema = from_json(schema_json)
    return validator_for(schema, default=jsonschema.Draft202012Validator)(schema, registry=_NOTHING_ELSE)


def _faults(validator: Validator, payload: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for number, error in enumerate(validator.iter_errors(payload)):
        if number == _MOST_FAULTS:
            return
        place = list(error.absolute_path)
        yield _fault([*place, *_field(error)], _cut(error.message), str(error.validator))


def _field(error: jsonschema.ValidationError) -> Sequence[str]:
    """The field that is missing, which the place of the fault does not name."""
    wanted: Any = error.validator_value
    if error.validator != "required" or not isinstance(wanted, list):
        return ()
    return [name for name in cast("list[str]", wanted) if error.message.startswith(repr(name))][:1]


def _fault(place: Sequence[str | int], message: str, kind: str) -> dict[str, Any]:
    return {"loc": ["body", "payload", *place], "msg": message, "type": kind}


def _cut(message: str) -> str:
    return message if len(message) <= _LONGEST_MESSAGE else f"{message[:_LONGEST_MESSAGE]}…"

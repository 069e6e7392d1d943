"""Schemas of registered jobs, and payloads of their tasks, as problems of the second API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic_core import from_json, to_json

from celery_jobs.api.payloads.check import SchemaUnusable
from celery_jobs.api.payloads.checker import Checker
from celery_jobs.records.errors import PayloadInvalid
from celery_jobs.records.remote.registering import canonical


async def check_schema(checker: Checker, schema: dict[str, Any]) -> str:
    """The schema as text; SchemaUnusable unless it is a JSON schema that stands by itself."""
    try:
        text = canonical(schema)
    except (RecursionError, TypeError, ValueError) as error:
        raise SchemaUnusable(f"not a usable JSON schema: {error}") from None
    await checker.check_schema(text)
    return text


async def check_payload(checker: Checker, full_name: str, schema_json: str, payload: dict[str, Any]) -> str:
    """The payload as JSON text; PayloadInvalid with one entry a fault."""
    text = to_json(payload, inf_nan_mode="constants").decode()
    if ("Infinity" in text or "NaN" in text) and not _is_strict(text):  # such as 1e999, which is well formed
        raise PayloadInvalid(full_name, [_fault([], "a number is too large, or is none", "finite_number")])
    found = await checker.check_payload(schema_json, payload, text)
    if found:
        raise PayloadInvalid(full_name, [_fault(*each) for each in found])
    return text


def _is_strict(text: str) -> bool:
    try:
        from_json(text, allow_inf_nan=False)
    except ValueError:
        return False
    return True


def _fault(place: Sequence[str | int], message: str, kind: str) -> dict[str, Any]:
    return {"loc": ["body", "payload", *place], "msg": message, "type": kind}

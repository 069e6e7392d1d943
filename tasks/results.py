"""Results as strict JSON: what Pydantic turns into JSON, and a clear refusal for the rest (contract, section 3)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn, cast

from pydantic_core import PydanticSerializationError, from_json, to_json, to_jsonable_python
from ulid import ULID

from celery_jobs.records.text import clean


class ResultNotStorable(Exception):
    """The job ran, but what it returned cannot be kept; the reason names the type or the size."""


_REFUSED = (bytes, bytearray, memoryview, set, frozenset, Iterator)


def encode_result(value: Any, max_bytes: int) -> str:
    """The result as JSON text: NaN and infinities become null, integer keys strings, lone surrogates U+FFFD."""
    try:
        _refuse_inside(value)
        text = _json(value)
    except RecursionError:
        raise ResultNotStorable("the result refers to itself or is nested too deeply for JSON") from None
    except (ValueError, PydanticSerializationError) as error:
        # the serializer wraps what our own refusal said
        reason = str(error).rpartition(f"{ResultNotStorable.__name__}: ")[2]
        raise ResultNotStorable(f"the result cannot be kept: {reason}") from None
    if len(text) > max_bytes:
        raise ResultNotStorable(f"the result is {len(text)} bytes, more than JOBS_MAX_RESULT_BYTES ({max_bytes})")
    return text.decode("utf-8")


def _json(value: Any) -> bytes:
    try:
        return to_json(value, inf_nan_mode="null", fallback=_plain)
    except (PydanticSerializationError, UnicodeEncodeError) as error:
        if "surrogates" not in str(error):
            raise
        plain = to_jsonable_python(value, inf_nan_mode="null", fallback=_plain)
        return to_json(_cleaned(plain), inf_nan_mode="null")


def _plain(value: Any) -> Any:
    """What Pydantic does not know by itself."""
    return str(value) if isinstance(value, ULID) else _refuse(value)


def _refuse(value: Any) -> NoReturn:
    raise ResultNotStorable(f"{type(value).__name__} cannot be written as JSON; return plain data or a Pydantic model")


def _refuse_inside(value: Any) -> None:
    if isinstance(value, _REFUSED):
        _refuse(value)
    if isinstance(value, dict):
        for key, item in cast("dict[Any, Any]", value).items():
            _refuse_inside(key)
            _refuse_inside(item)
    elif isinstance(value, list | tuple):
        for item in cast("list[Any]", value):
            _refuse_inside(item)


def _cleaned(value: Any) -> Any:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        return {_cleaned(key): _cleaned(item) for key, item in cast("dict[Any, Any]", value).items()}
    if isinstance(value, list):
        return [_cleaned(item) for item in cast("list[Any]", value)]
    return value


def decode_result(text: str) -> Any:
    """The Python value of a stored result."""
    return from_json(text)

"""Results as strict JSON: what Pydantic turns into JSON, and a clear refusal for the rest (contract, section 3)."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterable
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from types import GeneratorType
from typing import Any, Final, NoReturn, cast

from pydantic_core import PydanticSerializationError, from_json, to_json, to_jsonable_python
from ulid import ULID

from celery_jobs.records.errors import ResultUnavailable
from celery_jobs.records.record import JobResult
from celery_jobs.records.states import JobStatus
from celery_jobs.records.text import without_lone_surrogates


class ResultNotStorable(Exception):
    """The job ran, but what it returned cannot be kept; the reason names the type or the size."""


DEEPEST: Final = 200  # levels; Pydantic's own parser reads no deeper, and others stop not far below

# Pydantic would write these, as text or as a list, and what was read back would not be what was returned
_REFUSED: Final = (bytes, bytearray, memoryview, set, frozenset, GeneratorType)
_NUMBERS: Final = frozenset({int, float, bool, type(None)})
_TOO_DEEP: Final = "the result refers to itself or is nested too deeply for JSON"


def encode_result(value: Any, max_bytes: int) -> str:
    """The result as JSON text: NaN and infinities become null, integer keys strings, lone surrogates U+FFFD.

    A Pydantic model decides by itself how it is written. ResultNotStorable for what JSON cannot hold.
    """
    try:
        look = _Look(max_bytes)
        look.at(value)
        text = _strict(_written(value, plainly=look.decimals))
    except RecursionError:
        raise ResultNotStorable(_TOO_DEEP) from None
    except (ValueError, PydanticSerializationError) as error:
        raise ResultNotStorable(_reason(value, error)) from None
    if len(text) > max_bytes:
        raise _too_large(len(text), max_bytes)
    return text.decode("utf-8")


def decode_result(text: str) -> Any:
    """The Python value of a stored result."""
    return from_json(text)


def value_of(found: JobResult) -> Any:
    """The result of a job that completed; ResultUnavailable says what the job is instead."""
    record = found.record
    if record.status is JobStatus.completed:
        return decode_result(found.result_json or "null")
    told = f": {record.error}" if record.error else ""
    raise ResultUnavailable(f"job {record.id} is {record.status}{told}")


class _Look:
    """One look at all that plain data holds, before any of it is written.

    Bounded by the size that a result may have, however often the same part is referred to.
    """

    def __init__(self, max_bytes: int) -> None:
        self.decimals = False  # True when there is a decimal that is no finite number
        self._size = 0  # of the JSON, at least
        self._max_bytes = max_bytes

    def at(self, value: Any, depth: int = 1) -> None:
        """Raise ResultNotStorable for what JSON cannot hold."""
        if isinstance(value, _REFUSED):
            _refuse(value)
        if isinstance(value, str):
            self._count(len(value))
        elif isinstance(value, dict):
            self._at_keys(cast("dict[Any, Any]", value))
            self._at_all(cast("dict[Any, Any]", value).values(), depth)
        elif isinstance(value, list | tuple | deque):
            self._at_all(cast("list[Any]", value), depth)
        elif isinstance(value, Decimal):
            self.decimals = self.decimals or not value.is_finite()
        elif isinstance(value, Enum):
            self.at(value.value, depth)
        elif _is_plain_dataclass(value):
            self._at_all(_fields(value).values(), depth)

    def _at_all(self, items: Iterable[Any], depth: int) -> None:
        if depth > DEEPEST:
            raise ResultNotStorable(_TOO_DEEP)
        for item in items:
            kind = type(item)
            if kind is str:
                self._count(len(item) + 1)
            elif kind in _NUMBERS:
                self._count(1)
            else:
                self._count(1)
                self.at(item, depth + 1)

    def _at_keys(self, keys: dict[Any, Any]) -> None:
        kinds = set(map(type, keys))
        if kinds == {str}:
            self._count(sum(map(len, keys)))
        elif kinds and kinds != {int}:  # of one kind, texts and numbers stay different when they become JSON
            for key in keys:
                self.at(key)
            if len(from_json(_written(dict.fromkeys(keys)))) < len(keys):
                _refuse_keys()

    def _count(self, size: int) -> None:
        self._size += size
        if self._size > self._max_bytes:
            raise _too_large(self._size, self._max_bytes)


def _written(value: Any, *, plainly: bool = False) -> bytes:
    try:
        return to_json(_plain(value) if plainly else value, inf_nan_mode="null", fallback=_unknown)
    except (PydanticSerializationError, UnicodeEncodeError) as error:
        if plainly or "surrogates" not in str(error):
            raise
    return _written(value, plainly=True)


def _strict(text: bytes) -> bytes:
    """The text, proven by reading it: strict JSON that can be read inside of what the service wraps around it."""
    try:
        from_json(b"[%s]" % text, allow_inf_nan=False)
    except ValueError as error:
        if "number out of range" in str(error):
            raise ResultNotStorable("an int of so many digits cannot be written as JSON; return it as text") from None
        if "recursion" in str(error):
            raise RecursionError from None
        # a model may be configured to write NaN, which no strict parser takes
        text = to_json(from_json(text), inf_nan_mode="null")
        from_json(text, allow_inf_nan=False)
    return text


def _unknown(value: Any) -> Any:
    """What Pydantic does not know by itself."""
    return str(value) if isinstance(value, ULID) else _refuse(value)


def _refuse(value: Any) -> NoReturn:
    raise ResultNotStorable(f"{type(value).__name__} cannot be written as JSON; return plain data or a Pydantic model")


def _refuse_keys() -> NoReturn:
    raise ResultNotStorable("a dict has two keys that are the same text in JSON")


def _too_large(size: int, max_bytes: int) -> ResultNotStorable:
    return ResultNotStorable(f"the result has {size} bytes or more, over JOBS_MAX_RESULT_BYTES ({max_bytes})")


def _reason(value: Any, error: Exception) -> str:
    said = str(error)
    if "invalid utf-8" in said:
        return "bytes that are no text cannot be written as JSON"
    _, ours, reason = said.rpartition(f"{ResultNotStorable.__name__}: ")  # the serializer wraps our own refusals
    return reason if ours else f"{type(value).__name__} cannot be written as JSON: {reason}"


def _plain(value: Any) -> Any:
    """The same without lone surrogates, and without decimals that are no finite number."""
    if isinstance(value, str):
        return without_lone_surrogates(value)
    if isinstance(value, Decimal):
        return value if value.is_finite() else None
    if isinstance(value, dict):
        items = cast("dict[Any, Any]", value).items()
        plain = {_plain(key) if isinstance(key, str) else key: _plain(item) for key, item in items}
        return plain if len(plain) == len(items) else _refuse_keys()
    if isinstance(value, list | tuple | deque):
        return [_plain(item) for item in cast("list[Any]", value)]
    if isinstance(value, Enum):
        return _plain(value.value)
    if _is_plain_dataclass(value):
        return _plain(_fields(value))
    if isinstance(value, PurePath):
        return without_lone_surrogates(str(value))
    if hasattr(type(value), "__pydantic_serializer__"):
        return _plain(to_jsonable_python(value, inf_nan_mode="null", fallback=_unknown))
    return value


def _is_plain_dataclass(value: Any) -> bool:
    """A dataclass of which Pydantic knows nothing; one of Pydantic's own decides like a model."""
    kind = cast("type[Any]", type(value))
    return dataclasses.is_dataclass(kind) and not hasattr(kind, "__pydantic_serializer__")


def _fields(value: Any) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}

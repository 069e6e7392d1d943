"""What a task returned, as JSON: what Pydantic can write, and a clear refusal for the rest (contract, section 3)."""

from __future__ import annotations

import dataclasses
import re
from collections import deque
from collections.abc import Iterable
from enum import Enum
from types import GeneratorType
from typing import Any, Final, NoReturn, cast

from pydantic import BaseModel
from pydantic_core import PydanticSerializationError, from_json, to_json, to_jsonable_python

from celery_jobs.client.errors import ResultNotJson

LONGEST_ERROR: Final = 4000  # characters that the service keeps

# Pydantic would write these as text or as a list, and what was read back would not be what was returned
_REFUSED: Final = (bytes, bytearray, memoryview, set, frozenset, GeneratorType)
_LONE_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_DEEPEST: Final = 200
_TOO_DEEP: Final = "the result refers to itself or is nested too deeply for JSON"


def jsonable(value: Any) -> Any:
    """The value as plain JSON data: NaN and infinities become null, keys text, lone surrogates U+FFFD.

    A Pydantic model decides by itself how it is written. ResultNotJson for what JSON cannot hold.
    """
    try:
        plain = _plain(value, 0)
        # read once more, so that what is not JSON after all is refused here and not by the server
        return from_json(to_json(plain, inf_nan_mode="null", fallback=_refuse), allow_inf_nan=False)
    except RecursionError:
        raise ResultNotJson(_TOO_DEEP) from None
    except (PydanticSerializationError, ValueError) as error:
        raise ResultNotJson(_reason(value, error)) from None


def one_line(error: BaseException) -> str:
    """`ExceptionType: message`, in the length that the service keeps."""
    kind = type(error).__name__
    try:
        said = str(error)
    except Exception as broken:
        said = f"(its text cannot be had: {type(broken).__name__})"
    return clean(f"{kind}: {said}" if said else kind)


def clean(text: str) -> str:
    """Text that UTF-8 can hold, in the length that the service keeps."""
    return _LONE_SURROGATE.sub("\ufffd", text[:LONGEST_ERROR])


def _plain(value: Any, depth: int) -> Any:
    """Plain containers looked through for what Pydantic would write in a way that loses its meaning."""
    if depth > _DEEPEST:
        raise RecursionError
    if isinstance(value, _REFUSED):
        _refuse(value)
    if isinstance(value, Enum):
        return _plain(value.value, depth)
    if isinstance(value, str):
        return _LONE_SURROGATE.sub("\ufffd", value)
    if isinstance(value, dict):
        items = cast("dict[Any, Any]", value).items()
        plain = {_key(key): _plain(item, depth + 1) for key, item in items}
        return plain if _keys_stay_different(plain, len(items)) else _refuse_keys()
    if isinstance(value, list | tuple | deque):
        return [_plain(item, depth + 1) for item in cast("Iterable[Any]", value)]
    if dataclasses.is_dataclass(cast("type[Any]", type(value))) and not hasattr(value, "__pydantic_serializer__"):
        return {field.name: _plain(getattr(value, field.name), depth + 1) for field in dataclasses.fields(value)}
    if isinstance(value, BaseModel):
        return _plain(to_jsonable_python(value, inf_nan_mode="null", fallback=_refuse), depth)
    return value


def _key(key: Any) -> Any:
    if isinstance(key, _REFUSED):
        _refuse(key)
    return _LONE_SURROGATE.sub("\ufffd", key) if isinstance(key, str) else key


def _keys_stay_different(plain: dict[Any, Any], before: int) -> bool:
    if len(plain) < before:
        return False
    of_one_kind = len(set(map(type, plain))) < 2  # texts and whole numbers that differ stay different as text
    return of_one_kind or len(from_json(to_json(dict.fromkeys(plain), fallback=_refuse))) == before


def _refuse(value: Any) -> NoReturn:
    raise ResultNotJson(f"{type(value).__name__} cannot be written as JSON; return plain data or a Pydantic model")


def _refuse_keys() -> NoReturn:
    raise ResultNotJson("a dict has two keys that are the same text in JSON")


def _reason(value: Any, error: Exception) -> str:
    _, ours, reason = str(error).rpartition(f"{ResultNotJson.__name__}: ")  # the serializer wraps our own refusals
    if ours:
        return reason
    if "recursion" in str(error):
        return _TOO_DEEP
    return f"{type(value).__name__} cannot be written as JSON: {error}"

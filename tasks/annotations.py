"""The annotations of a function: the types that its arguments shall have, as far as they can be read at run time."""

from __future__ import annotations

import contextlib
import inspect
import typing
import warnings
from collections.abc import Callable
from typing import Any

import typing_extensions
from pydantic import TypeAdapter
from pydantic.json_schema import PydanticJsonSchemaWarning


def hints(function: Callable[..., Any]) -> dict[str, Any]:
    """The types of the parameters; without those that only a type checker can read, which take anything."""
    found: dict[str, Any] = {}
    for name in _annotations(function):
        with contextlib.suppress(Exception):
            found[name] = _hint(function, name)
    return found


def check_schemas(task: str, function: Callable[..., Any], bound: bool) -> None:
    """TypeError that names the parameter whose type JSON cannot bring; `bound`: the first one is no argument."""
    parameters = list(inspect.signature(function).parameters)[1 if bound else 0 :]
    for name in [each for each in parameters if each in _annotations(function)]:
        try:
            hint = _hint(function, name)
            if not is_unpacked(hint):
                _schema(hint)
        except Exception as error:
            said = str(error).partition("\n")[0]
            raise TypeError(
                f"the task {task} cannot take its argument {name!r} from JSON: there is no JSON schema for "
                f"{_spelled(function, name)} ({type(error).__name__}: {said})"
            ) from error


def is_unpacked(hint: Any) -> bool:
    """True for `**options: Unpack[…]`, which names arguments that are no parameters of their own."""
    return typing.get_origin(hint) in (typing.Unpack, typing_extensions.Unpack)  # one and the same from Python 3.12 on


def _schema(hint: Any) -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PydanticJsonSchemaWarning)  # a default that JSON has no word for is left out
        return TypeAdapter(hint).json_schema()


def _annotations(function: Callable[..., Any]) -> dict[str, Any]:
    annotations: dict[str, Any] = getattr(function, "__annotations__", {})
    return {name: annotation for name, annotation in annotations.items() if name != "return"}


def _hint(function: Callable[..., Any], name: str) -> Any:
    """One by one, since the type of another parameter, or of the result, may not be there at run time."""

    def alone() -> None: ...

    alone.__annotations__ = {name: function.__annotations__[name]}
    names = getattr(inspect.unwrap(function), "__globals__", {})
    return typing.get_type_hints(alone, globalns=names, include_extras=True)[name]


def _spelled(function: Callable[..., Any], name: str) -> str:
    annotation = function.__annotations__[name]
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)

"""A task's arguments: the JSON schema from its annotations, strict checking of JSON, and typed values in the worker."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError, create_model
from pydantic_core import from_json, to_json

from celery_jobs.records.errors import ArgumentsInvalid

# what JSON gives already is what these annotations ask for
_JSON_TYPES = (str, int, float, bool, type(None), dict, list, Any, inspect.Parameter.empty)
_UNNAMED = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class Arguments:
    """The arguments of one function, made once at its declaration."""

    def __init__(self, name: str, function: Callable[..., Any], bound: bool = False) -> None:
        self.name = name
        self._hints = _hints(function)
        signature = inspect.signature(function)
        parameters = list(signature.parameters.values())[1 if bound else 0 :]
        self._signature = signature.replace(parameters=parameters)
        fields: dict[str, Any] = {}
        for parameter in parameters:
            if parameter.kind not in _UNNAMED:
                default = ... if parameter.default is parameter.empty else parameter.default
                fields[parameter.name] = (self._hint(parameter), default)
        open_ended = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
        config = ConfigDict(
            extra="allow" if open_ended else "forbid", arbitrary_types_allowed=True, protected_namespaces=()
        )
        self.model: type[BaseModel] = create_model(name.rsplit(".", 1)[-1], __config__=config, **fields)
        self._typed = any(not _is_json(self._hints.get(p.name, p.empty)) for p in parameters)

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON schema of the keyword arguments."""
        try:
            return self.model.model_json_schema()
        except Exception:  # an annotation that JSON schema cannot express still takes any JSON
            return {"type": "object"}

    def check_json(self, body: bytes) -> str:
        """The keyword arguments as JSON text; ArgumentsInvalid with one entry a fault. Never coerces true to 1."""
        try:
            values = from_json(body, allow_inf_nan=False)
        except ValueError as error:
            raise ArgumentsInvalid(
                self.name, [{"loc": ["body"], "msg": f"not valid JSON: {error}", "type": "json_invalid"}]
            ) from None
        if not isinstance(values, dict):
            fault = {"loc": ["body"], "msg": "the body must be a JSON object of keyword arguments", "type": "dict_type"}
            raise ArgumentsInvalid(self.name, [fault])
        try:
            self.model.model_validate_json(body, strict=True)
        except ValidationError as error:
            raise ArgumentsInvalid(self.name, _faults(error)) from None
        text = to_json(values).decode("utf-8")
        if "Infinity" in text and _has_infinity(text):  # such as 1e999, which is well formed
            fault = {"loc": ["body"], "msg": "a number is too large", "type": "finite_number"}
            raise ArgumentsInvalid(self.name, [fault])
        return text

    def load(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The typed values that the function is called with; raises ValidationError or TypeError."""
        if not self._typed:
            return tuple(args), dict(kwargs)
        bound = self._signature.bind(*args, **kwargs)
        for name, value in bound.arguments.items():
            parameter = self._signature.parameters[name]
            if parameter.kind not in _UNNAMED and not _is_json(self._hint(parameter)):
                bound.arguments[name] = TypeAdapter(self._hint(parameter)).validate_python(value)
        return bound.args, dict(bound.kwargs)

    def _hint(self, parameter: inspect.Parameter) -> Any:
        return self._hints.get(parameter.name, Any)


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function, include_extras=True)
    except Exception:  # a name that only a type checker sees
        return {}


def _is_json(hint: Any) -> bool:
    return hint in _JSON_TYPES or (
        typing.get_origin(hint) in (dict, list) and all(_is_json(a) for a in typing.get_args(hint))
    )


def _has_infinity(text: str) -> bool:
    try:
        from_json(text, allow_inf_nan=False)
    except ValueError:
        return True
    return False


def _faults(error: ValidationError) -> list[dict[str, Any]]:
    return [
        {"loc": ["body", *fault["loc"]], "msg": fault["msg"], "type": fault["type"]}
        for fault in error.errors(include_url=False, include_context=False, include_input=False)
    ]

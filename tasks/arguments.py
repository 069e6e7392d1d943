"""A task's arguments: the JSON schema from its annotations, strict checking of JSON, and typed values in the worker."""

from __future__ import annotations

import inspect
import typing
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Final, cast

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, create_model
from pydantic.json_schema import PydanticJsonSchemaWarning
from pydantic_core import from_json, to_json

from celery_jobs.records.errors import ArgumentsInvalid
from celery_jobs.tasks.annotations import hints, is_unpacked

# what JSON gives already is what these annotations ask for
_JSON_TYPES = (str, int, float, bool, type(None), dict, list, Any, inspect.Parameter.empty)
_UNNAMED = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
# such an object is how Celery's messages spell what JSON has no word for: it would arrive as something else, or never
_RESERVED: Final = {"__type__", "__value__"}
_MOST_FAULTS: Final = 100
_PLAIN: Final = "what JSON has: text, numbers, true, false, None, lists and dicts of these"


class ArgumentsCannotCross(TypeError):
    """An argument would arrive as something else than it is, or not at all."""


class Arguments:
    """The arguments of one function, made once at its declaration."""

    def __init__(self, name: str, function: Callable[..., Any], bound: bool = False) -> None:
        self.name = name
        self._hints = hints(function)
        signature = inspect.signature(function)
        parameters = list(signature.parameters.values())[1 if bound else 0 :]
        self._signature = signature.replace(parameters=parameters)
        self._positional = [each.name for each in parameters if each.kind is each.POSITIONAL_ONLY]
        fields: dict[str, Any] = {}
        for number, parameter in enumerate(parameters):
            if parameter.kind not in _UNNAMED:
                default = ... if parameter.default is parameter.empty else parameter.default
                # under another name: a model takes no field that begins with an underscore, or `model_config`
                fields[f"argument_{number}"] = (self._hint(parameter), Field(default, alias=parameter.name))
        self.model: type[BaseModel] = create_model(name.rsplit(".", 1)[-1], __base__=self._base(parameters), **fields)
        self._adapters: dict[str, TypeAdapter[Any] | None] = {}
        self._typed = not all(_is_json(self._hint(parameter)) for parameter in parameters)

    def _base(self, parameters: Sequence[inspect.Parameter]) -> type[BaseModel]:
        """A model of what the function does with arguments that no parameter names."""
        more = [self._hint(parameter) for parameter in parameters if parameter.kind is parameter.VAR_KEYWORD]
        config = ConfigDict(extra="allow" if more else "forbid", arbitrary_types_allowed=True)
        annotations = {"__pydantic_extra__": dict[str, more[0]]} if more else {}
        members = {"__module__": __name__, "model_config": config, "__annotations__": annotations}
        return type("Base", (BaseModel,), members)

    @cached_property
    def schema(self) -> dict[str, Any]:
        """The JSON schema of the keyword arguments."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PydanticJsonSchemaWarning)
            return self.model.model_json_schema()

    def check_json(self, body: bytes) -> str:
        """The keyword arguments as JSON text; ArgumentsInvalid with one entry a fault. Never coerces true to 1."""
        try:
            values = from_json(body, allow_inf_nan=False)
        except ValueError as error:
            raise self._invalid(f"not valid JSON: {error}", "json_invalid") from None
        if not isinstance(values, dict):
            raise self._invalid("the body must be a JSON object of keyword arguments", "dict_type")
        try:
            self.model.model_validate_json(body, strict=True)
        except ValidationError as error:
            raise ArgumentsInvalid(self.name, _faults(error)) from None
        text = to_json(values).decode("utf-8")
        if "Infinity" in text and _has_infinity(text):  # such as 1e999, which is well formed
            raise self._invalid("a number is too large", "finite_number")
        place = next(_reserved_places(values), None) if '"__type__"' in text else None
        if place is not None:
            raise self._invalid("an object with just __type__ and __value__ is reserved", "reserved", *place)
        return text

    def _invalid(self, message: str, kind: str, *place: str | int) -> ArgumentsInvalid:
        return ArgumentsInvalid(self.name, [{"loc": ["body", *place], "msg": message, "type": kind}])

    def call_json(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[str, str]:
        """The arguments of a Python call as two JSON texts, positional and by name.

        TypeError for a call that does not fit the signature, ArgumentsCannotCross for a value that JSON and the
        annotation of its parameter do not bring back, ArgumentsInvalid for one of another type than annotated.
        """
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self.name}: {error}") from None
        for name, value in bound.arguments.items():
            self._demand_crossing(self._signature.parameters[name], value)
        spread = self._name_of(inspect.Parameter.VAR_POSITIONAL)
        rest = self._name_of(inspect.Parameter.VAR_KEYWORD)
        if bound.arguments.get(spread):
            return _json(list(bound.args)), _json(bound.kwargs)  # what is behind the names has places only
        named = {name: value for name, value in bound.arguments.items() if name not in (spread, rest)}
        return "[]", self.check_json(_json({**named, **bound.arguments.get(rest, {})}).encode())

    def _name_of(self, kind: Any) -> str:
        return next((each.name for each in self._signature.parameters.values() if each.kind is kind), "")

    def _demand_crossing(self, parameter: inspect.Parameter, value: Any) -> None:
        told = None
        try:
            if _is_json(self._hint(parameter)) and not _is_plain(value):
                told = f"annotate the parameter with its type, or pass {_PLAIN}"
            else:
                _json(value)
        except (ValueError, TypeError, RecursionError) as error:
            told = f"{error}; pass {_PLAIN}"
        if told is not None:
            kind = type(value).__name__
            raise ArgumentsCannotCross(
                f"argument {parameter.name!r} of {self.name} is a {kind} that cannot cross: {told}"
            )

    def load(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The typed values that the function is called with; raises ValidationError or TypeError."""
        args, kwargs = list(args), dict(kwargs)
        for name in self._positional[len(args) :]:
            if name not in kwargs:
                break
            args.append(kwargs.pop(name))  # JSON gives every argument by its name
        if not self._typed:
            return tuple(args), kwargs
        bound = self._signature.bind(*args, **kwargs)
        for name, value in bound.arguments.items():
            adapter = self._adapter(self._signature.parameters[name])
            if adapter is not None:
                bound.arguments[name] = adapter.validate_python(value)
        return bound.args, dict(bound.kwargs)

    def by_name(self, called: tuple[tuple[Any, ...], dict[str, Any]]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The same call with every argument, defaults too, under its name wherever Python allows it."""
        bound = self._signature.bind(*called[0], **called[1])
        bound.apply_defaults()
        if any(each.kind is each.VAR_POSITIONAL for each in self._signature.parameters.values()):
            return bound.args, dict(bound.kwargs)  # what stands before *args has to stand there
        split = len(self._positional)
        args, named = bound.args[:split], bound.args[split:]
        names = [each for each in self._signature.parameters if each not in self._positional]
        return args, dict(zip(names, named, strict=False)) | bound.kwargs

    def example(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """A call of the function with something for everything that it takes."""
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for each in self._signature.parameters.values():
            if each.kind is each.KEYWORD_ONLY:
                kwargs[each.name] = None
            elif each.kind is each.VAR_KEYWORD:
                kwargs["anything_else"] = None
            else:
                args.append(None)
        return tuple(args), kwargs

    def spelled(self) -> str:
        """The parameters as they were declared, without their types."""
        plain = [each.replace(annotation=each.empty) for each in self._signature.parameters.values()]
        return str(inspect.Signature(plain))

    def _adapter(self, parameter: inspect.Parameter) -> TypeAdapter[Any] | None:
        """What makes a parameter's value of JSON; None where JSON gives already what is asked for."""
        if parameter.name not in self._adapters:  # made late: nothing is asked of a type whose value is never given
            hint = self._hint(parameter)
            several = {parameter.VAR_POSITIONAL: tuple[hint, ...], parameter.VAR_KEYWORD: dict[str, hint]}
            whole: Any = several.get(parameter.kind, hint)
            self._adapters[parameter.name] = None if _is_json(hint) else TypeAdapter(whole)
        return self._adapters[parameter.name]

    def _hint(self, parameter: inspect.Parameter) -> Any:
        hint = self._hints.get(parameter.name, Any)
        return Any if is_unpacked(hint) else hint


def _is_json(hint: Any) -> bool:
    return hint in _JSON_TYPES or (
        typing.get_origin(hint) in (dict, list) and all(_is_json(a) for a in typing.get_args(hint))
    )


def _json(value: Any) -> str:
    return to_json(value, inf_nan_mode="constants").decode("utf-8")


def _is_plain(value: Any) -> bool:
    """Whether JSON brings it back as it is (a tuple as a list, as everywhere in Celery)."""
    if isinstance(value, dict):
        members = cast("dict[Any, Any]", value)
        return all(isinstance(key, str) and _is_plain(item) for key, item in members.items())
    if isinstance(value, list | tuple):
        return all(_is_plain(item) for item in cast("list[Any]", value))
    return value is None or isinstance(value, str | int | float)


def _has_infinity(text: str) -> bool:
    try:
        from_json(text, allow_inf_nan=False)
    except ValueError:
        return True
    return False


def _reserved_places(value: Any) -> Iterator[tuple[str | int, ...]]:
    if isinstance(value, dict):
        members = cast("dict[str, Any]", value)
        if members.keys() == _RESERVED:
            yield ()
        inside: Any = members.items()
    else:
        inside = enumerate(cast("list[Any]", value)) if isinstance(value, list) else ()
    for step, item in inside:
        for place in _reserved_places(item):
            yield (step, *place)


def _faults(error: ValidationError) -> list[dict[str, Any]]:
    return [
        {"loc": ["body", *fault["loc"]], "msg": fault["msg"], "type": fault["type"]}
        for fault in error.errors(include_url=False, include_context=False, include_input=False)[:_MOST_FAULTS]
    ]

"""Annotations of tasks: what JSON cannot bring is refused where the task is declared, with its parameter."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import BaseModel
from typing_extensions import TypedDict, Unpack

from celery_jobs.tasks import JobTask, job

if TYPE_CHECKING:
    from fractions import Fraction


class Point(BaseModel):
    x: int


class Options(TypedDict, total=False):
    fast: bool


class Plain:
    pass


NOTHING: Any = object()


def with_a_lock(path: str, lock: threading.Thread) -> None: ...
def with_a_class(*plain: Plain) -> None: ...
def with_a_function(path: str, *, call: Callable[[int], int]) -> None: ...
def with_an_unknown_name(path: str, ratio: Fraction) -> None: ...
def with_a_class_inside(path: str, plain: list[dict[str, Plain | None]]) -> None: ...


@pytest.mark.parametrize(
    ("function", "parameter", "spelled"),
    [
        (with_a_lock, "lock", "threading.Thread"),
        (with_a_class, "plain", "Plain"),
        (with_a_function, "call", r"Callable\[\[int\], int\]"),
        (with_an_unknown_name, "ratio", "Fraction"),
        (with_a_class_inside, "plain", r"list\[dict\[str, Plain \| None\]\]"),
    ],
)
def test_what_json_cannot_bring_names_the_task_and_the_parameter(
    function: Callable[..., Any], parameter: str, spelled: str
) -> None:
    said = rf"task my\.task cannot take its argument '{parameter}' from JSON: there is no JSON schema for {spelled} \("
    with pytest.raises(TypeError, match=said):
        job(name="my.task")(function)


def test_what_is_no_argument_may_have_any_annotation() -> None:
    def bound(self: JobTask, point: Point) -> Fraction: ...

    def more(first, **options: Unpack[Options]) -> None: ...  # type: ignore[no-untyped-def]

    assert job(name="annotations.bound", bind=True)(bound).arguments.schema["required"] == ["point"]
    assert job(name="annotations.more")(more).arguments.schema["required"] == ["first"]


def test_one_type_that_cannot_be_read_costs_no_other_its_own() -> None:
    def drawn(point: Point) -> Fraction: ...

    arguments = job(name="annotations.drawn")(drawn).arguments
    assert arguments.load(({"x": 1},), {}) == ((Point(x=1),), {})


def test_a_default_that_json_has_no_word_for_is_left_out_of_the_schema() -> None:
    def function(path: str = NOTHING, point: Point = NOTHING) -> None: ...

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        schema = job(name="annotations.function")(function).arguments.schema
    assert "required" not in schema
    assert "default" not in schema["properties"]["path"]

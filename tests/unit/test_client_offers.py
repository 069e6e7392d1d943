"""What the SDK reads from a class: category, schema, full name, payload."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, ClassVar, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, computed_field

from celery_jobs.client import JobManager
from celery_jobs.client.offers import category_of, offer_of, payload_of


class Rotate(BaseModel):
    angle: float = 0.0
    axis: str = "z"


class ByClassVar(BaseModel):
    category: ClassVar[str] = "selections"


class ByField(BaseModel):
    category: str = "analysis"
    angle: float = 0.0


class ByLiteral(BaseModel):
    category: Literal["analysis"] = "analysis"


class ByFactory(BaseModel):
    category: str = Field(default_factory=lambda: "selections")


class Kind(StrEnum):
    SELECTIONS = "selections"


class ByEnum(BaseModel):
    category: Kind = Kind.SELECTIONS


class Given(BaseModel):
    category: str


class Inherits(ByClassVar):
    pass


class Number(BaseModel):
    category: int = 3


@pytest.mark.parametrize(
    ("task_class", "category"),
    [
        (Rotate, "modifiers"),
        (ByClassVar, "selections"),
        (ByField, "analysis"),
        (ByLiteral, "analysis"),
        (ByFactory, "selections"),
        (ByEnum, "selections"),
        (Given, "modifiers"),
        (Inherits, "selections"),
    ],
)
def test_category_is_read_from_the_class(task_class: type[BaseModel], category: str) -> None:
    assert category_of(task_class) == category
    assert type(category_of(task_class)) is str


def test_category_that_is_no_text_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match="category of Number must be text, not int"):
        category_of(Number)


def test_an_offer_is_for_all_rooms_unless_one_is_named() -> None:
    assert offer_of(Rotate).full_name == "@global:modifiers:Rotate"
    assert offer_of(Rotate, "room_123").full_name == "room_123:modifiers:Rotate"
    assert offer_of(Rotate).schema == Rotate.model_json_schema()


@pytest.mark.parametrize("what", [dict, Rotate(), "Rotate", None, 3])
def test_only_pydantic_classes_can_be_registered(what: Any) -> None:
    with pytest.raises(TypeError, match="pydantic"):
        offer_of(what)


def test_a_payload_is_what_the_class_takes() -> None:
    class Fetch(BaseModel):
        model_config = ConfigDict(extra="forbid")
        from_: str = Field(alias="from")

        @computed_field
        @property
        def shout(self) -> str:
            return self.from_.upper()

    payload = payload_of(Fetch.model_validate({"from": "here"}))
    assert payload == {"from": "here"}
    assert Fetch.model_validate(payload).from_ == "here"


def test_a_manager_is_a_mapping_and_needs_no_server_to_be_made() -> None:
    jobs, other = JobManager("http://127.0.0.1:9"), JobManager("http://127.0.0.1:9/")
    assert len(jobs) == 0
    assert list(jobs) == []
    assert "@global:modifiers:Rotate" not in jobs
    assert jobs.get("@global:modifiers:Rotate") is None
    with pytest.raises(KeyError):
        jobs["@global:modifiers:Rotate"]
    assert jobs != other
    assert len({jobs, other, jobs}) == 2
    assert other.api.base_url == "http://127.0.0.1:9"

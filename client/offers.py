"""From a Pydantic class to the job that is registered for it."""

from __future__ import annotations

from enum import Enum
from typing import Any, Final

from pydantic import BaseModel

from celery_jobs.client.wire import JobOffer

GLOBAL: Final = "@global"
DEFAULT_CATEGORY: Final = "modifiers"


def offer_of(task_class: type[BaseModel], room: str | None = None) -> JobOffer:
    """The job of a class; in no room it is one for all rooms. TypeError for what is no Pydantic class."""
    _check(task_class)
    return JobOffer(
        room if room is not None else GLOBAL, category_of(task_class), task_class.__name__, schema_of(task_class)
    )


def category_of(task_class: type[BaseModel]) -> str:
    """The class attribute `category`, or the default of a field of that name; "modifiers" without one."""
    field = task_class.model_fields.get("category")
    if field is None:
        category: Any = getattr(task_class, "category", DEFAULT_CATEGORY)
    else:
        category = (
            DEFAULT_CATEGORY if field.is_required() else field.get_default(call_default_factory=True, validated_data={})
        )
    if isinstance(category, Enum):
        category = category.value
    if not isinstance(category, str):
        kind = type(category).__name__
        raise TypeError(f"the category of {task_class.__name__} must be text, not {kind}")
    return category


def schema_of(task_class: type[BaseModel]) -> dict[str, Any]:
    """The JSON schema of what the class takes."""
    return task_class.model_json_schema()


def payload_of(instance: BaseModel) -> Any:
    """The fields of an instance as the class takes them: by their aliases, without what is computed."""
    return instance.model_dump(mode="json", by_alias=True, round_trip=True)


def _check(task_class: Any) -> None:
    if not (isinstance(task_class, type) and issubclass(task_class, BaseModel)):
        raise TypeError(f"only classes that extend pydantic.BaseModel can be registered, not {task_class!r}")

"""Queues: what may be changed."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator


def _whole(value: Any) -> Any:
    """To JSON, 5.0 is an integer too."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _as_sent(schema: dict[str, Any]) -> None:
    """Without defaults: a generated client would send them, and so change what its caller left out."""
    schema["minProperties"] = 1
    for each in schema["properties"].values():
        each.pop("default", None)


class QueueChange(BaseModel):
    """A change of a queue; what is left out stays as it is."""

    model_config = ConfigDict(extra="forbid", strict=True, json_schema_extra=_as_sent)

    max_concurrency: Annotated[int | None, BeforeValidator(_whole)] = Field(
        default=None, ge=1, le=2**31 - 1, description="How many jobs may run at once, over all workers; null: no limit."
    )
    paused: bool = Field(default=False, description="A paused queue starts no job.")

    @model_validator(mode="after")
    def _changes_something(self) -> Self:
        if not self.model_fields_set:
            raise ValueError("name max_concurrency or paused, or both")
        return self

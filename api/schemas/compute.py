"""The example task's request."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class ComputeRequest(BaseModel):
    """How long to compute."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    duration: float = Field(ge=0.1, le=60, description="Seconds.", examples=[30])

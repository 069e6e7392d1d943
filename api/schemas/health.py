"""Health: the service's state and that of each thing it needs."""

from __future__ import annotations

from enum import StrEnum

from pydantic import BaseModel


class State(StrEnum):
    """How well something is."""

    healthy = "healthy"
    degraded = "degraded"
    unhealthy = "unhealthy"


class CheckView(BaseModel):
    """One thing that the service needs."""

    state: State
    message: str | None


class HealthView(BaseModel):
    """Healthy, degraded (jobs wait) or unhealthy (no job can be read or submitted)."""

    status: State
    checks: dict[str, CheckView]


class ProbeView(BaseModel):
    """The answer of a probe."""

    status: str

"""The service's health: one look for all who ask at the same time, so that many probes cost no more than one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Protocol

from celery_jobs.api.schemas.health import CheckView, HealthView, State

_FRESH_SECONDS: Final = 0.2
_VITAL: Final = ("database", "scheduler")  # the second where a scheduler of somebody's own is plugged in


class Check(Protocol):
    """The outcome of one check."""

    @property
    def ok(self) -> bool:
        """True when the thing works."""
        ...

    @property
    def detail(self) -> str:
        """What was found, in a sentence."""
        ...


class HealthWatch:
    """Looks at the health when somebody asks, at most a few times a second."""

    def __init__(self, check: Callable[[], Awaitable[Mapping[str, Check]]]) -> None:
        self._check = check
        self._looking: asyncio.Task[HealthView] | None = None
        self._began = 0.0

    async def look(self) -> HealthView:
        """The health now, or as it was a moment ago."""
        now = asyncio.get_running_loop().time()
        if self._looking is None or (self._looking.done() and now > self._began + _FRESH_SECONDS):
            self._began = now
            self._looking = asyncio.create_task(self._look())
        return await asyncio.shield(self._looking)

    async def _look(self) -> HealthView:
        return view(await self._check())


def view(checks: Mapping[str, Check]) -> HealthView:
    """Without the database, or the scheduler that has none, nothing works; without broker or workers jobs only wait."""
    shown = {
        name: CheckView(state=State.healthy if check.ok else _failed(name), message=check.detail or None)
        for name, check in checks.items()
    }
    states = {check.state for check in shown.values()}
    worst = next((state for state in (State.unhealthy, State.degraded) if state in states), State.healthy)
    return HealthView(status=worst, checks=shown)


def _failed(name: str) -> State:
    return State.unhealthy if name in _VITAL else State.degraded

"""Celery tasks that rooms see as jobs, written into a service's folder as the module `rooms` beside `sample`."""

from __future__ import annotations

import asyncio
import time
from typing import Literal

from pydantic import BaseModel
from sample import LOOK_SECONDS, released, told  # pyright: ignore[reportMissingImports]

from celery_jobs.tasks import job


class Box(BaseModel):
    """Something that has a schema of its own."""

    sides: list[int]


@job(name="Rotate", category="modifiers")
def rotate(angle: float, axis: Literal["x", "y", "z"] = "z", box: Box | None = None) -> dict[str, object]:
    with told():
        return {"angle": angle, "axis": axis, "sides": box.sides if box else None}


@job(name="Hold", category="selections")
def hold(name: str) -> str:
    """A plain function: nobody can interrupt it."""
    with told(name):
        while not released(name):
            time.sleep(LOOK_SECONDS)
    return name


@job(name="HoldAsync", category="analysis")
async def hold_async(name: str) -> str:
    """A coroutine: interrupted at its next await."""
    with told(name):
        while not released(name):  # noqa: ASYNC110  # another process releases it
            await asyncio.sleep(LOOK_SECONDS)
    return name


@job(name="Raise", category="modifiers")
def raising() -> None:
    raise ValueError("no\nangle")


@job(name="Ordinary")
def ordinary() -> None:
    """Not for rooms."""

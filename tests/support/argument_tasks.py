"""Jobs that take arguments of any type, written into a service's folder as the module `arguments`."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal
from uuid import UUID

from pydantic import BaseModel, Field

from celery_jobs.tasks import JobTask, job

if TYPE_CHECKING:
    from fractions import Fraction


class Color(enum.Enum):
    red = "r"
    blue = "b"


class Point(BaseModel):
    x: int
    y: int = 0


class Shape(BaseModel):
    points: list[Point] = []
    color: Color = Color.red
    drawn_at: datetime | None = None
    inner: Shape | None = None


@dataclass
class Pair:
    left: int
    right: Point


@dataclass
class Circle:
    kind: Literal["circle"]
    radius: float


@dataclass
class Square:
    kind: Literal["square"]
    side: float


def shown(**values: Any) -> dict[str, str]:
    return {name: repr(value) for name, value in values.items()}


@job
def every(
    shape: Shape,
    shapes: dict[str, list[Shape]],
    pair: Pair,
    color: Color,
    at: datetime,
    day: date,
    lasting: timedelta,
    ident: UUID,
    price: Decimal,
    path: Path,
    percent: Annotated[int, Field(ge=0, le=100)],
    form: Annotated[Circle | Square, Field(discriminator="kind")],
    either: int | str,
    both: tuple[int, Color],
    several: set[int],
    maybe: Point | None = None,
    default: Point = Point(x=7),  # noqa: B008  # models are not changed
) -> dict[str, str]:
    return shown(**locals())


@job(bind=True)
async def kinds(
    self: JobTask, first: Color, /, second: Color, *rest: Color, third: Color = Color.red, **more: Color
) -> Fraction | dict[str, str]:
    """Parameters of every kind, of a task that is bound, a coroutine, and whose result only a type checker knows."""
    return shown(name=self.name, first=first, second=second, rest=rest, third=third, more=more)


@job
def send() -> str:
    """Sends `kinds` past the service, as any Celery program does; its task id."""
    return kinds.delay("r", "b", "r", "b", third="b", fourth="r").id

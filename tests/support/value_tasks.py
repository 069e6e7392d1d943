"""Jobs that return and raise odd things, written into a service's folder as the module `values`.

Each odd thing has a name, so that a test can ask for what no JSON argument could carry.
"""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict
from ulid import ULID

from celery_jobs.tasks import JobTask, job

NAN = float("nan")
INFINITE = float("inf")


class Color(Enum):
    red = "r"
    pair = (1, 2)
    raw = b"r"


class Level(IntEnum):
    high = 3


class Model(BaseModel):
    x: Any = None


class Loud(BaseModel):
    """Told to write NaN as it is, which no JSON parser takes."""

    model_config = ConfigDict(ser_json_inf_nan="constants")
    x: float = NAN


@dataclass
class Record:
    x: Any = None


@dataclass(repr=False)
class Shy:
    """Nothing may look at it but a serializer."""

    x: int = 1

    def __repr__(self) -> str:
        raise ValueError("not shown")


class Point(NamedTuple):
    a: Any
    b: Any


class Thing: ...


async def soon(value: Any) -> Any:
    await asyncio.sleep(0)
    return value


async def endless() -> Any:
    yield 1


def nested(levels: int) -> Any:
    value: Any = []
    for _ in range(levels - 1):
        value = [value]
    return value


def nested_model(levels: int) -> Model:
    value = Model()
    for _ in range(levels):
        value = Model(x=value)
    return value


def doubled(levels: int) -> Any:
    """Small in memory, without end as text."""
    value: Any = []
    for _ in range(levels):
        value = [value, value]
    return value


def holding_itself() -> Any:
    value: dict[str, Any] = {}
    value["x"] = [value]
    return value


def model_holding_itself() -> Any:
    value = Model()
    value.x = value
    return value


VALUES: dict[str, Callable[[], Any]] = {
    "nothing": lambda: None,
    "nan": lambda: NAN,
    "infinities": lambda: {"a": [INFINITE, -INFINITE, (NAN,), {"b": NAN}]},
    "nan_in_model": lambda: Model(x=[NAN, INFINITE]),
    "nan_in_loud_model": lambda: [Loud()],
    "nan_in_dataclass": lambda: Record((NAN, -INFINITE)),
    "nan_in_namedtuple": lambda: Point(NAN, 1),
    "nan_decimal": lambda: [Decimal("NaN"), Decimal("-Infinity"), Decimal("1.50")],
    "long_int": lambda: 10**399,
    "longest_int": lambda: [10**5000],
    "minus_zero": lambda: [-0.0, 1e308, 5e-324],
    "set": lambda: {1},
    "frozenset": lambda: [frozenset("a")],
    "set_in_dataclass": lambda: Record({1}),
    "object": Thing,
    "object_in_model": lambda: Model(x=Thing()),
    "object_key": lambda: {Thing(): 1},
    "bytes": lambda: b"text",
    "bytes_deep": lambda: {"a": [(1, {"b": b"\xff"})]},
    "bytes_key": lambda: {b"a": 1},
    "bytes_in_model": lambda: Model(x=b"\xff\xfe"),
    "bytes_enum": lambda: Color.raw,
    "bytearray": lambda: [bytearray(b"x")],
    "generator": lambda: (n for n in range(3)),
    "async_generator": endless,
    "coroutine_inside": lambda: [soon(1)],
    "coroutine": lambda: soon({"a": 1}),
    "class": lambda: Thing,
    "function": lambda: nested,
    "lock": threading.Lock,
    "exception": lambda: ValueError("returned"),
    "datetime": lambda: datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
    "date": lambda: date(2026, 1, 2),
    "timedelta": lambda: timedelta(days=1, seconds=1),
    "uuid": lambda: uuid.UUID(int=1),
    "ulid": lambda: ULID.from_int(0),
    "decimal": lambda: Decimal("1.50"),
    "enum": lambda: [Color.red, Color.pair, Level.high],
    "path": lambda: Path("/a") / "b",
    "odd_path": lambda: Path("/a\udcff"),
    "model": lambda: Model(x={"y": [date(2026, 1, 2)]}),
    "dataclass": lambda: Record(Point(1, Record())),
    "namedtuple": lambda: Point(1, [2]),
    "deque": lambda: deque([1]),
    "counter": lambda: Counter("aab"),
    "shy": Shy,
    "keys": lambda: {1: "a", 2.5: "b", None: "c", True + 1: "d", (1, 2): "e", Color.red: "f", date(2026, 1, 2): "g"},
    "bool_key": lambda: {False: "a"},
    "keys_alike": lambda: {1: "a", "1": "b"},
    "keys_alike_once_clean": lambda: dict.fromkeys(map(chr, (0xD800, 0xDFFF))),
    "surrogates": lambda: {"\ud800": ["\udfff", "a\x00b"], "fine": "\U0001f600"},
    "surrogates_in_model": lambda: Model(x="\ud800"),
    "control_characters": lambda: "\x00\x01\r\n\u2028\u2029\x85\x7f\ufeff\uffff",
    "nested_200": lambda: nested(200),
    "nested_201": lambda: nested(201),
    "nested_1000": lambda: nested(1_000),
    "nested_100000": lambda: nested(100_000),
    "nested_models": lambda: nested_model(300),
    "doubled": lambda: doubled(60),
    "holding_itself": holding_itself,
    "model_holding_itself": model_holding_itself,
    "celery_type": lambda: {"__type__": "nosuch", "__value__": 1},
    "long_text": lambda: "x" * 20_000_000,
}


@job
def echo(value: Any) -> Any:
    """What came in."""
    return value


@job
def echo_all(**values: Any) -> dict[str, Any]:
    """All that came in, under any name."""
    return values


@job
def shown(value: Any) -> str:
    """How Python shows what came in."""
    return repr(value)


@job
def give(what: str) -> Any:
    """An odd value."""
    return VALUES[what]()


@job
async def give_async(what: str) -> Any:
    """The same from a coroutine."""
    return VALUES[what]()


@job
def text_of(size: int) -> str:
    """So many characters, each a byte."""
    return "x" * size


@job
def delay(what: str) -> str:
    """Sends `give` past the service; its task id."""
    return give.delay(what).id


@job
def delay_typed() -> str:
    """Sends values that messages carry and JSON does not."""
    return kinds.delay(datetime(2026, 1, 2, tzinfo=UTC), uuid.UUID(int=1), Decimal("1.5"), b"\xff", NAN, "\ud800").id


@job
def delay_unreadable(count: int) -> None:
    """Sends messages whose arguments no worker can read."""
    for _ in range(count):
        echo.delay({"__type__": "nosuch", "__value__": 1})


@job(bind=True, max_retries=1)
def kinds(self: JobTask, *values: Any) -> list[str]:
    """The types that came in, when they came for the second time."""
    if not self.request.retries:
        raise self.retry(countdown=0)
    return [type(value).__name__ for value in values]

"""Jobs that raise odd things, written into a service's folder as the module `failing`; each has a name."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, NoReturn

from celery_jobs.tasks import job


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


class Unmentionable(Exception):
    def __str__(self) -> str:
        raise KeyboardInterrupt

    __repr__ = __str__


class Untouchable(Exception):
    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)


class TwoParts(Exception):
    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code}: {text}")


class Unpicklable(Exception):
    def __init__(self) -> None:
        super().__init__("holds a lock")
        self.lock = threading.Lock()


class BadPickle(Exception):
    def __reduce__(self) -> Any:
        raise RuntimeError("no pickle")


class WorsePickle(Exception):
    def __reduce__(self) -> Any:
        raise SystemExit(3)


class Fundamental(BaseException):
    pass


class Meta(type):
    @property
    def __name__(cls) -> str:  # type: ignore[override]
        raise ValueError("no name")


class Nameless(Exception, metaclass=Meta):
    pass


def chained(length: int) -> Exception:
    error: Exception = ValueError("the first")
    for number in range(length):
        following = ValueError(f"link {number}")
        following.__cause__ = error
        error = following
    return error


def noted() -> Exception:
    error = ValueError("with notes")
    error.add_note("a\ud800\x00\u2028b")
    error.__notes__ += [3, None]  # type: ignore[list-item]
    return error


def own_cause() -> Exception:
    error = ValueError("its own cause")
    error.__cause__ = error
    return error


ERRORS: dict[str, Callable[[], BaseException]] = {
    "nul": lambda: ValueError("a\x00b"),
    "surrogate": lambda: ValueError("a\ud800b"),
    "line_ends": lambda: ValueError("a\r\nb\rc\nd\u2028e\u2029f\x85g\x0bh\x0ci"),
    "emoji": lambda: ValueError("\U0001f600 \U0001f469\u200d\U0001f680 é"),
    "all_odd": lambda: ValueError('\x00\ud83d\udc00\r\n\u2028\x85\x1b[31m\x07"\\data: x\n\n: y'),
    "long": lambda: ValueError("é" * 3_000_000),
    "long_lines": lambda: ValueError("x\n" * 1_500_000),
    "unspeakable": Unspeakable,
    "unmentionable": Unmentionable,
    "untouchable": Untouchable,
    "two_parts": lambda: TwoParts(1, "b"),
    "unpicklable": Unpicklable,
    "bad_pickle": lambda: BadPickle("x"),
    "worse_pickle": lambda: WorsePickle("x"),
    "holds_a_lock": lambda: ValueError(threading.Lock()),
    "group": lambda: ExceptionGroup("several", [ValueError("a\x00"), TwoParts(2, "c"), Unpicklable()]),
    "chain": lambda: chained(100),
    "notes": noted,
    "own_cause": own_cause,
    "odd_name": lambda: type("a\nb\u2028: c", (Exception,), {})("m"),
    "long_name": lambda: type("N" * 10_000, (Exception,), {})("m"),
    "no_name": lambda: type("", (Exception,), {})("m"),
    "nameless": lambda: Nameless("m"),
    "local_class": lambda: type("Local", (Exception,), {"__module__": "no.such.module"})("m"),
    "empty": ValueError,
    "stop_iteration": lambda: StopIteration(3),
    "generator_exit": lambda: GeneratorExit("x"),
    "fundamental": lambda: Fundamental("x"),
    "base_group": lambda: BaseExceptionGroup("several", [Fundamental("x")]),
    "canceled_by_itself": lambda: asyncio.CancelledError("x"),
    "memory": lambda: MemoryError("x"),
    "recursion": lambda: RecursionError("x"),
    "key": lambda: KeyError("a\nb"),
    "os": lambda: OSError(2, "gone", "\udcff"),
}


@job
def fail(what: str) -> NoReturn:
    """An odd error."""
    raise ERRORS[what]()


@job
async def fail_async(what: str) -> NoReturn:
    """The same from a coroutine."""
    raise ERRORS[what]()


@job
def fail_saying(points: list[int]) -> NoReturn:
    """An error of any text, which is told by its code points: no argument can hold half of a surrogate pair."""
    raise ValueError("".join(map(chr, points)))


@job
def delay(what: str) -> str:
    """Sends `fail` past the service; its task id."""
    return fail.delay(what).id

"""Work that is more than a function: for a store that repeats it, or sends its usual case by the driver itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from functools import partial
from itertools import count
from typing import Any, Concatenate, Generic, Literal, ParamSpec, TypeVar, cast

from sqlalchemy import Connection, Select

P = ParamSpec("P")
T = TypeVar("T")


class Odd(Enum):
    """What a OneStatement says of a case that its one statement does not cover."""

    ODD = "odd"


IsOdd = Literal[Odd.ODD]
Request = tuple[Select[Any], Mapping[str, Any]]


class Repeatable(Generic[P, T]):
    """Work that a store calls like any other, and repeats by `again`.

    A try whose commit was not answered may have had its effect; `again` takes that for its own success, where `work`
    would find nothing left to do and refuse.
    """

    def __init__(
        self,
        work: Callable[Concatenate[Connection, P], T],
        again: Callable[Concatenate[Connection, P], T] | None = None,
    ) -> None:
        self._work = work
        self.again = again or work

    def __call__(self, connection: Connection, *args: P.args, **kwargs: P.kwargs) -> T:
        """The first try."""
        return self._work(connection, *args, **kwargs)


def repeatable(work: Callable[Concatenate[Connection, P], T]) -> Repeatable[P, T]:
    """For work that takes a keyword `again`: true in every try but the first."""
    return Repeatable(work, partial(cast("Any", work), again=True))


def calling(
    work: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs
) -> Callable[[Connection], T]:
    """The work with its arguments; from the second try on, if it is Repeatable, its `again`."""
    again, tries = getattr(work, "again", work), count()
    return lambda connection: (again if next(tries) else work)(connection, *args, **kwargs)


class OneStatement(Repeatable[P, T]):
    """Work that is one statement of PostgreSQL in its usual case, which an event loop may send itself (direct.py).

    `request` gives the statement (the same object each time) and its parameters, `outcome` what its first row means.
    Either may say ODD: then `work` does it, which does every case anywhere, after a statement that, if it was sent,
    changed nothing that `work` minds.
    """

    def __init__(
        self,
        work: Callable[Concatenate[Connection, P], T],
        request: Callable[P, Request | IsOdd],
        outcome: Callable[[Any], T | IsOdd],
        again: Callable[Concatenate[Connection, P], T] | None = None,
    ) -> None:
        super().__init__(work, again)
        self.request = request
        self.outcome = outcome

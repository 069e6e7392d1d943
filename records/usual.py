"""Work that is one statement in its usual case, which an event loop may then send by the driver itself (direct.py)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Concatenate, Generic, Literal, ParamSpec, TypeVar

from sqlalchemy import Connection, Select

P = ParamSpec("P")
T = TypeVar("T")


class Odd(Enum):
    """No usual case: the work must look itself."""

    ODD = "odd"


IsOdd = Literal[Odd.ODD]
Request = tuple[Select[Any], Mapping[str, Any]]


class OneStatement(Generic[P, T]):
    """Work that is one statement of PostgreSQL in its usual case; called like any other it does every case anywhere.

    `request` gives the statement (the same object each time) and its parameters, `outcome` what its first row means.
    Either may say ODD; a statement that was sent has then changed nothing that `work` minds. `again` does the work
    after a try that may have had its effect, although its answer was lost.
    """

    def __init__(
        self,
        work: Callable[Concatenate[Connection, P], T],
        request: Callable[P, Request | IsOdd],
        outcome: Callable[[Any], T | IsOdd],
        again: Callable[Concatenate[Connection, P], T] | None = None,
    ) -> None:
        self._work = work
        self.again = again or work
        self.request = request
        self.outcome = outcome

    def __call__(self, connection: Connection, *args: P.args, **kwargs: P.kwargs) -> T:
        """Every case."""
        return self._work(connection, *args, **kwargs)

"""Statements that an API process sends all the time, by the driver itself; SQLAlchemy builds and compiles them once.

Through SQLAlchemy's async face the same statement took three times the processor time.
"""

from __future__ import annotations

import asyncio
from collections import namedtuple
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, cast

import psycopg
from sqlalchemy import Dialect, Select
from sqlalchemy.exc import DBAPIError

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

_Processor = Callable[[Any], Any] | None
_Driver = psycopg.AsyncConnection[tuple[Any, ...]]
_Held = tuple["AsyncConnection", _Driver]
# kept open; what is beyond waits for one, which costs less than to open more
MOST_CONNECTIONS: Final = 5


class _Prepared:
    """A compiled statement, and how its values and rows are translated."""

    def __init__(self, statement: Select[Any], dialect: Dialect) -> None:
        compiled = statement.compile(dialect=dialect)
        self.sql = str(compiled).encode()
        self._fixed = dict(compiled.params)
        self._binds: dict[str, Callable[[Any], Any]] = {}
        for name, bind in compiled.binds.items():
            if process := bind.type.dialect_impl(dialect).bind_processor(dialect):
                self._binds[name] = process
        columns = statement.selected_columns
        self._row: Any = namedtuple("Row", columns.keys())  # pyright: ignore[reportUntypedNamedTuple]
        kinds = (column.type.dialect_impl(dialect) for column in columns)
        self._results: list[_Processor] = [kind.result_processor(dialect, None) for kind in kinds]

    def values(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """The parameters as the driver takes them."""
        values = {**self._fixed, **parameters}
        for name, process in self._binds.items():
            values[name] = process(values[name])
        return values

    def row(self, found: tuple[Any, ...]) -> Any:
        """A row with its columns by name."""
        return self._row._make(
            value if process is None else process(value) for value, process in zip(found, self._results, strict=True)
        )


class Direct:
    """A few connections of an engine whose statements commit by themselves; of one event loop."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._idle: list[_Held] = []
        self._free = asyncio.Semaphore(MOST_CONNECTIONS)
        self._prepared: dict[Select[Any], _Prepared] = {}

    async def first(self, statement: Select[Any], parameters: Mapping[str, Any]) -> Any:
        """The first row, if any; once sent, the statement commits by itself."""
        prepared = self._prepared.get(statement)
        if prepared is None:
            prepared = self._prepared[statement] = _Prepared(statement, self._engine.dialect)
        async with self._free:
            connection, driver = self._idle.pop() if self._idle else await self._taken()
            try:
                found = await _execute(driver, prepared.sql, prepared.values(parameters))
            except BaseException as error:
                await _let_go(connection)
                if isinstance(error, DBAPIError) and error.connection_invalidated:
                    while self._idle:  # what broke this one broke the others
                        await _let_go(self._idle.pop()[0])
                raise
            self._idle.append((connection, driver))
        return None if found is None else prepared.row(found)

    async def close(self) -> None:
        """Give the connections back."""
        while self._idle:
            await self._idle.pop()[0].close()

    async def _taken(self) -> _Held:
        connection = await self._engine.connect()
        return connection, cast(_Driver, (await connection.get_raw_connection()).driver_connection)


async def _let_go(connection: AsyncConnection) -> None:
    await connection.invalidate()
    await connection.close()


async def _execute(driver: _Driver, sql: bytes, values: Mapping[str, Any]) -> tuple[Any, ...] | None:
    try:
        cursor = await driver.execute(sql, values)
        return await cursor.fetchone()
    except psycopg.Error as error:
        # as SQLAlchemy would: the callers tell an outage from a refusal by it
        broken = driver.closed or driver.broken
        raise DBAPIError.instance(sql.decode(), None, error, psycopg.Error, connection_invalidated=broken) from error

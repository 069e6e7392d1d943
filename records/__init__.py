"""The record of every job, in SQL: the only truth about it; knows neither HTTP nor Celery (docs/architecture.md)."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, overload

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine


@overload
def create_tables(bind: Engine | Connection) -> None: ...
@overload
def create_tables(bind: AsyncEngine | AsyncConnection) -> Coroutine[Any, Any, None]: ...


def create_tables(bind: Engine | Connection | AsyncEngine | AsyncConnection) -> Coroutine[Any, Any, None] | None:
    """Make or update the service's tables in a host application's database; to be awaited where the bind is async.

    Quick where they are up to date, safe in several processes at once, and in a migration of the host's Alembic
    (contract, section 8). A connection keeps its transaction. SettingsError where the host has tables of these names.
    """
    from celery_jobs.records import migrate  # whoever only needs the states pays for no database library

    return migrate.create_tables(bind)

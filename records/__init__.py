"""The record of every job, in SQL: the only truth about it; knows neither HTTP nor Celery (docs/architecture.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine


def create_tables(bind: Engine | Connection) -> None:
    """Make or update the service's tables in a host application's database (contract, section 8)."""
    from celery_jobs.records import migrate  # whoever only needs the states pays for no database library

    migrate.create_tables(bind)

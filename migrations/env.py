"""What Alembic runs: on the connection that `celery_jobs.records.migrate` hands over, or on DATABASE_URL's database."""

from __future__ import annotations

from alembic import context
from sqlalchemy import Connection

from celery_jobs.records.engine import database_url, sync_engine
from celery_jobs.records.migrate import VERSION_TABLE
from celery_jobs.records.settings import load_settings
from celery_jobs.records.tables import metadata


def run(connection: Connection) -> None:
    """The scripts between the database's revision and the wanted one."""
    context.configure(
        connection=connection,
        target_metadata=metadata,
        version_table=VERSION_TABLE,
        compare_type=True,
        compare_server_default=True,
    )
    with context.begin_transaction():
        context.run_migrations()


def run_for_developer() -> None:
    """`alembic revision --autogenerate` and the like, with the alembic.ini of the repository."""
    engine = sync_engine(database_url(load_settings().database_url))
    with engine.execution_options(writes=True).begin() as connection:
        run(connection)
    engine.dispose()


handed_over: Connection | None = context.config.attributes.get("connection")
if handed_over is not None:
    run(handed_over)
else:
    run_for_developer()

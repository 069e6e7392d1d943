"""Bringing a database to the schema of this code, and telling whether it is there (contract, section 9)."""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Engine, String, column, inspect, select, table, text
from sqlalchemy.exc import DatabaseError, DBAPIError

from celery_jobs.records.engine import database_url, sync_engine
from celery_jobs.records.errors import DatabaseUnavailable, SettingsError
from celery_jobs.records.outage import is_outage
from celery_jobs.records.settings import Settings
from celery_jobs.records.store import Store
from celery_jobs.records.tables import metadata

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

# a name of our own: the database may be a host's, who uses Alembic too
VERSION_TABLE = "celery_jobs_version"

_VERSION = select(table(VERSION_TABLE, column("version_num", String)).c.version_num)
_LOCK = 0x63656C6A6F6273  # "celjobs": the advisory lock under which one process at a time migrates


def upgrade(settings: Settings) -> None:
    """Make the database or bring it to this code's schema; safe in several processes at once, quick if up to date."""
    engine = _engine(settings)
    try:
        with engine.connect() as connection:
            if not _behind(_revision(connection)):
                return
        with engine.execution_options(writes=True).begin() as connection:
            _migrate(connection)
    except DBAPIError as error:
        raise _explained(error, settings) from error
    finally:
        engine.dispose()


def check(database: Store | Settings) -> None:
    """SettingsError when the database is older than this code; a newer one is fine, since it only adds."""
    engine = database.engine if isinstance(database, Store) else _engine(database)
    try:
        with engine.connect() as connection:
            revision = _revision(connection)
    except DBAPIError as error:
        raise _explained(error, database) from error
    finally:
        if not isinstance(database, Store):
            engine.dispose()
    if revision is None:
        raise SettingsError("The database has no tables of this service; run `celery-jobs migrate`")
    if _behind(revision):
        raise SettingsError(
            f"The database is at revision {revision}, this version needs {_known()[-1]}; run `celery-jobs migrate`"
        )


def create_tables(bind: Engine | Connection | AsyncEngine | AsyncConnection) -> Coroutine[Any, Any, None] | None:
    """Make or update the tables in a host application's database; a Connection keeps its transaction."""
    if isinstance(bind, Connection):
        return _migrate(bind)
    if not isinstance(bind, Engine):
        return _create_tables(bind)
    with bind.execution_options(writes=True).begin() as connection:
        return _migrate(connection)


async def _create_tables(bind: AsyncEngine | AsyncConnection) -> None:
    from sqlalchemy.ext.asyncio import AsyncEngine  # who has none pays nothing

    if isinstance(bind, AsyncEngine):
        async with bind.begin() as connection:
            await connection.run_sync(_migrate)
    else:
        await bind.run_sync(_migrate)


def _known() -> list[str]:
    """The revisions of this code, oldest first: the numbers in front of the scripts' names."""
    names = (entry.name for entry in (files("celery_jobs.migrations") / "versions").iterdir())
    return sorted(name.split("_")[0] for name in names if name[0].isdigit())


def _behind(revision: str | None) -> bool:
    """A revision that this code does not know was made by a later version."""
    known = _known()
    return revision is None or revision in known[:-1]


def _revision(connection: Connection) -> str | None:
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    return connection.execute(_VERSION).scalar()


def _migrate(connection: Connection) -> None:
    """All missing scripts, in the connection's transaction."""
    if not _behind(_revision(connection)):
        return
    _lock(connection)
    revision = _revision(connection)
    if not _behind(revision):
        return  # another process was faster
    if revision is None:
        _demand_free_names(connection)
    from alembic import command  # slow to import, and seldom needed
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(files("celery_jobs.migrations")).replace("%", "%%"))
    config.attributes["connection"] = connection
    with _host_migration_kept():
        command.upgrade(config, "head")


def _lock(connection: Connection) -> None:
    """One process at a time, until the transaction ends."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
    elif not getattr(connection.connection.driver_connection, "in_transaction", True):
        # a host's driver begins no transaction before DDL
        connection.exec_driver_sql("BEGIN IMMEDIATE")


def _demand_free_names(connection: Connection) -> None:
    if taken := sorted(set(inspect(connection).get_table_names()) & set(metadata.tables)):
        raise SettingsError(
            f"The database has tables of another application under names that this service needs ({', '.join(taken)}); "
            "use a database or a PostgreSQL schema of its own"
        )


@contextmanager
def _host_migration_kept() -> Generator[None]:
    """A host may call us within a migration of its own, whose `op` and `context` Alembic would take away."""
    import alembic

    outer = [getattr(each, "_proxy", None) for each in (alembic.context, alembic.op)]
    try:
        yield
    finally:
        for each in outer:
            if each is not None:
                each._install_proxy()


def _engine(settings: Settings) -> Engine:
    url = database_url(settings.database_url)
    try:
        return sync_engine(url, pool_size=1, unhurried=True)  # a script may take its time over a large table
    except OSError as error:
        folder = Path(str(url.database)).parent
        raise SettingsError(
            f"The folder {folder} cannot be made ({error.strerror}); set JOBS_DATA_DIR or DATABASE_URL to a place "
            "where this user may write"
        ) from None


def _explained(error: DBAPIError, database: Store | Settings) -> Exception:
    """What the failure means to whoever started the command."""
    said = str(error.orig).strip()
    url = str(database.engine.url) if isinstance(database, Store) else database.database_url
    if url.startswith("sqlite") and isinstance(error, DatabaseError) and "locked" not in said:
        return SettingsError(
            f"The database {url} cannot be used ({said}); set JOBS_DATA_DIR or DATABASE_URL to a place where this "
            "user may write"
        )
    return DatabaseUnavailable(said) if is_outage(error) else error

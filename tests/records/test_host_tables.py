"""The service's tables in a host application's database, made with its own engine and beside its own (section 8)."""

from __future__ import annotations

import multiprocessing
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from sqlalchemy import Column, Connection, Engine, Integer, MetaData, Table, create_engine, event, inspect, text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from celery_jobs.records import create_tables, migrate
from celery_jobs.records.errors import SettingsError
from celery_jobs.records.tables import metadata

OURS = {*metadata.tables, migrate.VERSION_TABLE}

ENV = """
from alembic import context
connection = context.config.attributes["connection"]
context.configure(connection=connection)
with context.begin_transaction():
    context.run_migrations()
    assert context.get_context() is not None
"""
MIGRATION = """
import sqlalchemy as sa
from alembic import op
from celery_jobs.records import create_tables
revision, down_revision = "first", None
def upgrade():
    op.create_table("hosts_own", sa.Column("id", sa.Integer(), primary_key=True))
    create_tables(op.get_bind())
    op.add_column("hosts_own", sa.Column("more", sa.Integer()))
"""


@pytest.fixture(params=["sqlite", "postgresql"])
def host_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database, as SQLAlchemy names it."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'host.db'}"
    return request.getfixturevalue("postgres_server").new_database().replace("postgresql:", "postgresql+psycopg:")


@pytest.fixture
async def async_engine(host_url: str) -> AsyncIterator[AsyncEngine]:
    engine = create_async_engine(host_url.replace("sqlite:", "sqlite+aiosqlite:"))
    yield engine
    await engine.dispose()


def tables_of(connection: Connection) -> set[str]:
    return set(inspect(connection).get_table_names())


def counts(engine: Engine) -> list[str]:
    """The statements that the engine runs from now on."""
    seen: list[str] = []
    event.listen(engine, "before_cursor_execute", lambda *said: seen.append(said[2]))
    return seen


async def test_an_async_engine_is_awaited(async_engine: AsyncEngine) -> None:
    await create_tables(async_engine)
    await create_tables(async_engine)
    async with async_engine.connect() as connection:
        assert await connection.run_sync(tables_of) == OURS


async def test_an_async_connection_keeps_its_transaction(async_engine: AsyncEngine) -> None:
    async with async_engine.connect() as connection:
        await create_tables(connection)
        await connection.rollback()
        assert await connection.run_sync(tables_of) == set()
        await connection.run_sync(create_tables)
        await connection.commit()
    async with async_engine.connect() as connection:
        assert await connection.run_sync(tables_of) == OURS


def test_a_connection_keeps_its_transaction_with_any_driver(host_url: str) -> None:
    engine = create_engine(host_url)
    with engine.connect() as connection:
        create_tables(connection)
        connection.rollback()
        assert tables_of(connection) == set()
    engine.dispose()


def test_doing_it_again_looks_and_writes_nothing(host_url: str) -> None:
    engine = create_engine(host_url)
    create_tables(engine)
    seen = counts(engine)
    create_tables(engine)
    assert seen
    assert [each for each in seen if not each.lstrip().upper().startswith(("SELECT", "PRAGMA"))] == []
    engine.dispose()


def make_in_child(url: str, gate: Any, failures: Any) -> None:
    engine = create_engine(url)
    gate.wait(60)
    try:
        create_tables(engine)
    except BaseException as error:
        failures.put(repr(error))
    engine.dispose()


def test_several_processes_of_a_host_make_them_at_once(host_url: str) -> None:
    fork = multiprocessing.get_context("fork")
    gate, failures = fork.Barrier(4), fork.Queue()
    children = [fork.Process(target=make_in_child, args=(host_url, gate, failures)) for _ in range(4)]
    for child in children:
        child.start()
    for child in children:
        child.join(60)
    assert [child.exitcode for child in children] == [0] * 4
    assert failures.empty()
    engine = create_engine(host_url)
    with engine.connect() as connection:
        assert tables_of(connection) == OURS
    engine.dispose()


def test_a_migration_of_the_hosts_own_alembic_may_make_them(host_url: str, tmp_path: Path) -> None:
    (tmp_path / "versions").mkdir()
    (tmp_path / "env.py").write_text(ENV, encoding="utf-8")
    (tmp_path / "versions" / "first.py").write_text(MIGRATION, encoding="utf-8")
    config = Config()
    config.set_main_option("script_location", str(tmp_path))
    engine = create_engine(host_url)
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
    with engine.connect() as connection:
        assert tables_of(connection) == OURS | {"hosts_own", "alembic_version"}
        assert connection.execute(text("SELECT version_num FROM alembic_version")).scalars().all() == ["first"]
        assert {each["name"] for each in inspect(connection).get_columns("hosts_own")} == {"id", "more"}
    engine.dispose()


def test_autogenerate_of_the_hosts_alembic_leaves_them_alone_when_told_to(host_url: str) -> None:
    """As docs/remote-host.md tells it."""
    engine = create_engine(host_url)
    create_tables(engine)
    with engine.connect() as connection:
        found = compare_metadata(MigrationContext.configure(connection), MetaData())
        assert {each[1].name for each in found if each[0] == "remove_table"} == OURS
        told = {"include_name": lambda name, type_, _: type_ != "table" or name not in OURS}
        assert compare_metadata(MigrationContext.configure(connection, opts=told), MetaData()) == []
    engine.dispose()


def test_a_table_of_the_hosts_under_one_of_our_names_is_left_alone(host_url: str) -> None:
    engine = create_engine(host_url)
    own = MetaData()
    Table("jobs", own, Column("id", Integer, primary_key=True))
    own.create_all(engine)
    with pytest.raises(SettingsError, match=r"tables of another application .*\(jobs\)"):
        create_tables(engine)
    with engine.connect() as connection:
        assert tables_of(connection) == {"jobs"}
    engine.dispose()


def test_a_schema_of_their_own_keeps_them_apart(postgres_server: Any) -> None:
    url = postgres_server.new_database().replace("postgresql:", "postgresql+psycopg:")
    host = create_engine(url)
    with host.begin() as connection:
        connection.execute(text("CREATE TABLE jobs (id integer)"))
        connection.execute(text("CREATE SCHEMA remote_work"))
    ours = create_engine(url, connect_args={"options": "-c search_path=remote_work"})
    create_tables(ours)
    with ours.connect() as connection:
        assert tables_of(connection) == OURS
    with host.connect() as connection:
        assert tables_of(connection) == {"jobs"}
    host.dispose()
    ours.dispose()

"""The schema: made by migrations, equal to the tables in code, checked cheaply."""

from __future__ import annotations

import multiprocessing
import os
import time
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, create_engine, inspect, text

from celery_jobs.records import create_tables, migrate, submit
from celery_jobs.records.engine import database_url, sync_engine
from celery_jobs.records.errors import DatabaseUnavailable, SettingsError
from celery_jobs.records.settings import Settings
from celery_jobs.records.store import Store
from celery_jobs.records.tables import metadata
from tests.support.ports import free_port


def settings_for(url: str) -> Settings:
    return Settings.model_validate({"DATABASE_URL": url})


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database without tables; the folder of the SQLite file is not there yet."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/new/folder/jobs.db"
    return request.getfixturevalue("postgres_server").new_database()


def engine_of(url: str) -> Engine:
    return sync_engine(database_url(url))


def alembic_config(connection: Connection) -> Config:
    config = Config()
    config.set_main_option("script_location", str(files("celery_jobs.migrations")))
    config.attributes["connection"] = connection
    return config


def structure(connection: Connection) -> dict[str, Any]:
    """All that the database says of its tables."""
    look = inspect(connection)
    names = sorted(set(look.get_table_names()) - {migrate.VERSION_TABLE})
    return {
        name: {
            "columns": {
                each["name"]: (repr(each["type"]), each["nullable"], each["default"]) for each in look.get_columns(name)
            },
            "key": look.get_pk_constraint(name),
            "checks": sorted((each["name"], each["sqltext"]) for each in look.get_check_constraints(name)),
            "unique": sorted(str(each["name"]) for each in look.get_unique_constraints(name)),
        }
        for name in names
    } | {"indexes": index_definitions(connection)}


def index_definitions(connection: Connection) -> list[str]:
    """In SQL, with order and condition."""
    sqlite = "SELECT sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL"
    postgres = "SELECT indexdef FROM pg_indexes WHERE schemaname = 'public'"
    found = connection.execute(text(sqlite if connection.dialect.name == "sqlite" else postgres)).scalars()
    return sorted(definition for definition in found if migrate.VERSION_TABLE not in definition)


def set_revision(url: str, revision: str) -> None:
    with engine_of(url).execution_options(writes=True).begin() as connection:
        connection.execute(text(f"UPDATE {migrate.VERSION_TABLE} SET version_num = :to"), {"to": revision})


@pytest.mark.filterwarnings("ignore:autogenerate skipping:UserWarning")
def test_alembic_finds_nothing_to_change_after_an_upgrade(empty_url: str):
    migrate.upgrade(settings_for(empty_url))
    with engine_of(empty_url).connect() as connection:
        options = {
            "version_table": migrate.VERSION_TABLE,
            "compare_type": True,
            "compare_server_default": True,
            # Alembic cannot read an order back from SQLite; the next test compares this index too
            "include_name": lambda name, *_: not (connection.dialect.name == "sqlite" and name == "ix_jobs_waiting"),
            "include_object": lambda _, name, *__: (
                not (connection.dialect.name == "sqlite" and name == "ix_jobs_waiting")
            ),
        }
        assert compare_metadata(MigrationContext.configure(connection, opts=options), metadata) == []


def test_the_migrated_schema_is_that_of_the_tables_down_to_checks_and_indexes(
    empty_url: str, tmp_path: Path, request: Any
):
    migrate.upgrade(settings_for(empty_url))
    sqlite = empty_url.startswith("sqlite")
    plain = f"sqlite:///{tmp_path}/plain.db" if sqlite else request.getfixturevalue("postgres_server").new_database()
    with engine_of(plain).execution_options(writes=True).begin() as connection:
        metadata.create_all(connection)
        expected = structure(connection)
    with engine_of(empty_url).connect() as connection:
        assert structure(connection) == expected
    assert len(expected["jobs"]["checks"]) == 4
    [waiting] = [definition for definition in expected["indexes"] if "ix_jobs_waiting" in definition]
    assert "priority DESC" in waiting
    assert "WHERE" in waiting


def test_a_downgrade_leaves_nothing_and_an_upgrade_works_again(empty_url: str):
    migrate.upgrade(settings_for(empty_url))
    engine = engine_of(empty_url)
    with engine.execution_options(writes=True).begin() as connection:
        command.downgrade(alembic_config(connection), "base")
    with engine.connect() as connection:
        assert inspect(connection).get_table_names() == [migrate.VERSION_TABLE]
    with pytest.raises(SettingsError, match="celery-jobs migrate"):
        migrate.check(settings_for(empty_url))
    migrate.upgrade(settings_for(empty_url))
    migrate.check(settings_for(empty_url))


def test_a_fresh_database_takes_jobs_at_once(empty_url: str):
    migrate.upgrade(settings_for(empty_url))
    store = Store(empty_url)
    migrate.check(store)
    assert len(store.write(submit.insert_batch, [submit.NewJob("t", "jobs")])) == 1
    store.close()


def upgrade_in_child(url: str, gate: Any, failures: Any) -> None:
    gate.wait(60)
    try:
        migrate.upgrade(settings_for(url))
    except BaseException as error:
        failures.put(repr(error))


def test_several_processes_upgrade_at_once(empty_url: str):
    spawn = multiprocessing.get_context("fork")
    gate, failures = spawn.Barrier(5), spawn.Queue()
    children = [spawn.Process(target=upgrade_in_child, args=(empty_url, gate, failures)) for _ in range(5)]
    for child in children:
        child.start()
    for child in children:
        child.join(60)
    assert [child.exitcode for child in children] == [0] * 5
    assert failures.empty()
    migrate.check(settings_for(empty_url))


def test_an_upgrade_that_has_nothing_to_do_is_quick(empty_url: str):
    migrate.upgrade(settings_for(empty_url))
    seconds: list[float] = []
    for _ in range(5):
        begun = time.perf_counter()
        migrate.upgrade(settings_for(empty_url))
        seconds.append(time.perf_counter() - begun)
    assert min(seconds) < 0.25  # five times the aim


def test_an_empty_or_older_database_is_refused_with_the_command_to_run(empty_url: str, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(SettingsError, match="celery-jobs migrate"):
        migrate.check(settings_for(empty_url))
    migrate.upgrade(settings_for(empty_url))
    known = migrate._known()
    monkeypatch.setattr(migrate, "_known", lambda: [*known, "9998"])
    for database in (settings_for(empty_url), store := Store(empty_url)):
        with pytest.raises(SettingsError, match=rf"revision {known[-1]}.*needs 9998.*celery-jobs migrate"):
            migrate.check(database)
    store.close()


def test_a_newer_database_is_accepted_and_left_alone(empty_url: str):
    migrate.upgrade(settings_for(empty_url))
    set_revision(empty_url, "9999")
    migrate.check(settings_for(empty_url))
    migrate.upgrade(settings_for(empty_url))
    with engine_of(empty_url).connect() as connection:
        assert connection.execute(text(f"SELECT version_num FROM {migrate.VERSION_TABLE}")).scalar() == "9999"


def test_the_names_of_the_scripts_are_their_revisions():
    with create_engine("sqlite://").connect() as connection:
        scripts = ScriptDirectory.from_config(alembic_config(connection))
    in_order = [script.revision for script in reversed(list(scripts.walk_revisions()))]
    assert in_order == migrate._known()
    assert scripts.get_heads() == in_order[-1:]


def test_a_host_application_makes_the_tables_with_its_own_engine(tmp_path: Path, postgres_server: Any):
    postgres = postgres_server.new_database().replace("postgresql:", "postgresql+psycopg:")
    for url in (f"sqlite:///{tmp_path}/host.db", postgres):
        engine = create_engine(url)
        create_tables(engine)
        create_tables(engine)
        with engine.begin() as connection:
            create_tables(connection)
            assert set(metadata.tables) <= set(inspect(connection).get_table_names())
        engine.dispose()


def test_a_connections_transaction_is_the_hosts_to_roll_back(postgres_server: Any):
    engine = create_engine(postgres_server.new_database().replace("postgresql:", "postgresql+psycopg:"))
    with engine.connect() as connection:
        create_tables(connection)
        connection.rollback()
        assert inspect(connection).get_table_names() == []
    engine.dispose()


def test_a_place_that_cannot_be_a_database_is_named(tmp_path: Path):
    (tmp_path / "file").write_text("no folder")
    (tmp_path / "no.db").write_text("this is a text and no database at all" * 200)
    for url in (f"sqlite:///{tmp_path}/file/jobs.db", f"sqlite:///{tmp_path}/no.db", f"sqlite:///{tmp_path}"):
        for call in (migrate.upgrade, migrate.check):
            with pytest.raises(SettingsError, match="DATABASE_URL"):
                call(settings_for(url))


def test_a_server_that_is_not_there_is_unavailable():
    url = f"postgresql://jobs@127.0.0.1:{free_port()}/jobs"
    for call in (migrate.upgrade, migrate.check):
        with pytest.raises(DatabaseUnavailable) as caught:
            call(settings_for(url))
        assert "refused" in caught.value.reason


def test_nothing_but_the_package_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    migrate.upgrade(settings_for("sqlite:///jobs.db"))
    assert sorted(os.listdir(tmp_path))[0] == "jobs.db"  # noqa: PTH208

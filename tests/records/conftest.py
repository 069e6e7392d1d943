"""Databases with the migrated schema, and faces on them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from celery_jobs.records.migrate import upgrade
from celery_jobs.records.settings import Settings
from tests.records.faces import AsyncFace, Face
from tests.support.postgres import PostgresServer

# each statement on both databases and from both faces, crosswise; at full length all four
FULL_LENGTH = ({"new_face": Face, "url": "postgresql"}, {"new_face": AsyncFace, "url": "sqlite"})


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks what runs at full length only."""
    for item in items:
        call = getattr(item, "callspec", None)
        if call is not None and any(each.items() <= call.params.items() for each in FULL_LENGTH):
            item.add_marker(pytest.mark.slow)


def migrate(url: str) -> None:
    """The schema of this code."""
    upgrade(Settings.model_validate({"DATABASE_URL": url}))


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated file to copy."""
    file = tmp_path_factory.mktemp("template") / "jobs.db"
    migrate(f"sqlite:///{file}")
    return file


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest) -> str:
    """A database of the test's own with all tables, of each kind."""
    return request.getfixturevalue(f"{request.param}_url")


@pytest.fixture
def postgresql_url(postgres_server: PostgresServer) -> Iterator[str]:
    """A migrated PostgreSQL database, for what only it has."""
    with postgres_server.lent_database(migrate) as url:
        yield url


@pytest.fixture
def sqlite_url(sqlite_template: Path, tmp_path: Path) -> str:
    """A migrated SQLite file, for what only it has."""
    shutil.copy(sqlite_template, tmp_path / "jobs.db")
    return f"sqlite:///{tmp_path / 'jobs.db'}"


@pytest.fixture(params=[Face, AsyncFace], ids=["sync", "async"])
def new_face(request: pytest.FixtureRequest, url: str) -> Iterator[Callable[[], Face]]:
    """Makes faces on the test's database; each is like a process of its own."""
    made: list[Face] = []

    def make() -> Face:
        made.append(request.param(url))
        return made[-1]

    yield make
    for face in made:
        face.close()


@pytest.fixture
def store(new_face: Callable[[], Face]) -> Face:
    """The store under test: sync and async, on SQLite and PostgreSQL."""
    return new_face()


@pytest.fixture
def two(new_face: Callable[[], Face]) -> tuple[Face, Face]:
    """Two processes on one database."""
    return new_face(), new_face()


@pytest.fixture
def other(url: str) -> Iterator[Callable[[], Face]]:
    """Makes sync faces, for tests that need no second kind."""
    made: list[Face] = []
    yield partial(_made, made, url)
    for face in made:
        face.close()


def _made(made: list[Face], url: str) -> Face:
    made.append(Face(url))
    return made[-1]

"""A service that the tests of one file share, with the file's SETTINGS, and the SDK before it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from celery_jobs.client import JobManager
from tests.support.processes import Processes
from tests.support.sdk import SdkWorkers, forget_workers
from tests.support.stack import EMBEDDED, Stack


@pytest.fixture(scope="module")
def served(start_stack: Callable[..., Stack], request: pytest.FixtureRequest) -> Stack:
    """A service for all tests of a file; it may be frozen, and is not stopped."""
    return start_stack(EMBEDDED, **getattr(request.module, "SETTINGS", {}))


@pytest.fixture
def client(served: Stack) -> httpx.Client:
    """A client of the service that knows nothing of the SDK; the service knows no worker."""
    forget_workers(served.apis[0].client)
    return served.apis[0].client


@pytest.fixture
def url(served: Stack) -> str:
    """Where the service is."""
    return served.apis[0].url


@pytest.fixture
def sdk(served: Stack, processes: Processes, tmp_path: Path) -> SdkWorkers:
    """Starts workers in a folder of the test's own."""
    return SdkWorkers(processes, tmp_path, served.service.env)


@pytest.fixture
def jobs(url: str) -> Iterator[JobManager]:
    """A worker and submitter in the test's own process."""
    with JobManager(url) as jobs:
        yield jobs


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What tasks write in the test's own process stays in the test's folder."""
    monkeypatch.chdir(tmp_path)

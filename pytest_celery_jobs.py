"""The pytest plugin: the fixture `jobs_service` and the mark `celery_jobs` (docs/testing.md).

It is loaded in every run of pytest where the package is installed, so it imports nothing but pytest until a test asks
for the fixture. It stands beside the packages, because pytest rewrites the assertions of whatever a plugin's
distribution has at its top; without this module it would take the folders for that, `tasks` and `api`, which are names
that users give to modules of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from celery_jobs.testing import JobsService
    from celery_jobs.testing.core import Core

_MARK = "celery_jobs"
_FIXTURE = "jobs_service"


def pytest_configure(config: pytest.Config) -> None:
    """Make the mark known, also to --strict-markers."""
    config.addinivalue_line("markers", f"{_MARK}(**settings): the settings of this test's {_FIXTURE}, by their fields")


class _Keeper:
    """Ends the service before a test that does not use it."""

    def __init__(self, core: Core) -> None:
        self._core = core

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self, nextitem: pytest.Item | None) -> Iterator[None]:
        """After the fixtures of a test have ended."""
        try:
            yield
        finally:
            if nextitem is None or _FIXTURE not in getattr(nextitem, "fixturenames", ()):
                self._core.stop()


@pytest.fixture(scope="session")
def _celery_jobs_core(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Core]:
    from celery_jobs.testing.core import Core

    core = Core(lambda: tmp_path_factory.mktemp("celery-jobs"))
    keeper = _Keeper(core)
    request.config.pluginmanager.register(keeper)
    yield core
    request.config.pluginmanager.unregister(keeper)
    core.stop()


@pytest.fixture
def jobs_service(request: pytest.FixtureRequest, _celery_jobs_core: Core) -> Iterator[JobsService]:
    """The job service in this process, without a broker: `submit`, `wait_for`, `cancel`, `set_max_concurrency`.

    What a test leaves is canceled and removed. `@pytest.mark.celery_jobs(max_concurrency=1)` gives it other settings.
    """
    given: dict[str, Any] = {}
    for mark in reversed(list(request.node.iter_markers(_MARK))):  # the closest one wins
        if mark.args:
            raise TypeError(f"the mark {_MARK} takes settings by name, not {mark.args!r}")
        given |= mark.kwargs
    yield _celery_jobs_core.lend(given)
    _celery_jobs_core.take_back()

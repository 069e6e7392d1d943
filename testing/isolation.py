"""What a test's service takes from its surroundings, which is nothing, and leaves in them when it ends: nothing."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from celery import _state
from celery.app import trace
from celery.app.task import Task
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource

from celery_jobs.records.settings import Settings, environment_names
from celery_jobs.records.spelling import nearest
from celery_jobs.tasks import memory, process
from celery_jobs.tasks.celery import app

# the service of a test has no servers, and a folder of its own that is emptied after each test
_FIXED = ("broker_url", "result_backend", "database", "data_dir")

# what the embedded service says to Celery, and what would win over it
_CONFIGURED = (
    *("broker_url", "broker_read_url", "broker_write_url", "broker_transport_options"),
    *("task_default_queue", "task_acks_late", "worker_disable_prefetch"),
)
_OVERRULING = ("CELERY_BROKER_READ_URL", "CELERY_BROKER_WRITE_URL")


class GivenSettings(Settings):
    """The settings as they are given, whatever the environment says."""

    @classmethod
    def settings_customise_sources(
        cls, settings_cls: type[BaseSettings], init_settings: PydanticBaseSettingsSource, *_: Any, **__: Any
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Only what the constructor is told."""
        return (init_settings,)


def settings_for(folder: Path, given: Mapping[str, Any]) -> Settings:
    """The settings of a test's service; TypeError for a name that is none, ValueError for a value out of its range."""
    known = sorted(Settings.model_fields.keys() - set(_FIXED))
    for name in given:
        if name in _FIXED:
            raise TypeError(f"the service of a test has no {name}: it is one process with a folder of its own")
        if name not in known:
            raise TypeError(f"{name} is no setting of this service; did you mean {nearest(name, known)}?")
    values: dict[str, Any] = {"data_dir": folder, "shutdown_timeout_seconds": 0.0, **given}
    return GivenSettings(**values)


@contextmanager
def no_other_service() -> Generator[None]:
    """A process is one service: RuntimeError where another one runs, and who was known before is known again."""
    before = process.current() if process.is_known() else None
    if before is not None and before.incarnation:
        raise RuntimeError(
            "another service runs in this process, such as an app that a fixture of this test has started; "
            "jobs_service cannot run beside it: use that app's scheduler, or put the tests into different modules"
        )
    try:
        yield
    finally:
        if before is not None:
            process.become(before)


@contextmanager
def own_celery(default_queue: str) -> Generator[None]:
    """The app uses the broker in memory and no result backend, and is the default app as in a worker; then as was."""
    conf = {name: app.conf.get(name) for name in _CONFIGURED}
    environment = {name: os.environ.pop(name) for name in _OVERRULING if name in os.environ}
    backend = (app.backend_cls, app._backend_cache, app._local)
    default_app, protected = _state.default_app, hasattr(Task, "_stackprotected")
    address = f"{memory.SCHEME}://localhost/"
    # CELERY_BROKER_URL wins over broker_url, but not over these two
    app.conf.update(broker_read_url=address, broker_write_url=address, task_default_queue=default_queue)
    app.backend_cls, app._backend_cache, app._local = "disabled", None, threading.local()
    _forget_connections()
    try:
        yield
    finally:
        app.conf.update(conf)
        os.environ.update(environment)
        app.backend_cls, app._backend_cache, app._local = backend
        _forget_connections()
        if not protected:
            trace.reset_worker_optimizations(app)
        _state.set_default_app(default_app)


def _forget_connections() -> None:
    """They lead to the broker that was configured when they were made."""
    app._pool = None
    app.__dict__.pop("amqp", None)


@contextmanager
def same_path() -> Generator[None]:
    """A service looks for tasks in the working directory; a test's own imports must not depend on that."""
    before = sys.path[:]
    try:
        yield
    finally:
        sys.path[:] = before


@contextmanager
def no_settings_outside() -> Generator[None]:
    """The environment has no settings of ours: a scheduler that is made without any looks there."""
    ours = [name for name in os.environ if name.upper().startswith("JOBS_") or name in environment_names().values()]
    taken = {name: os.environ.pop(name) for name in ours}
    try:
        yield
    finally:
        os.environ.update(taken)

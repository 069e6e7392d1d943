"""The Celery app; `celery -A celery_jobs.tasks worker` finds it."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from celery import Celery
from celery.concurrency import ALIASES
from celery.signals import celeryd_init

from celery_jobs.records.errors import SettingsError
from celery_jobs.records.settings import Settings, load_settings
from celery_jobs.tasks import defaults, memory


def _deployment() -> ModuleType | None:
    """The `celeryconfig.py` of the working directory (or CELERY_CONFIG_MODULE), where there is one."""
    name = os.environ.get("CELERY_CONFIG_MODULE") or "celeryconfig"
    folder = str(Path.cwd())
    sys.path.insert(0, folder)  # as Celery's own loader does: the working directory first
    try:
        if importlib.util.find_spec(name) is None:
            return None
        return importlib.import_module(name)
    finally:
        sys.path.remove(folder)


def _configured(app: Celery) -> Celery:
    changed = _deployment()
    settings = {key: value for key, value in vars(defaults).items() if _is_setting(key)}
    if changed is not None:
        settings |= {key: value for key, value in vars(changed).items() if _is_setting(key)}
    if settings.get("broker_url") and not os.environ.get("CELERY_BROKER_URL"):
        os.environ["CELERY_BROKER_URL"] = settings["broker_url"]  # one place says whether there is a broker
    app.conf.update(settings)
    return app


def _is_setting(name: str) -> bool:
    return name.islower() and not name.startswith("_") and name not in ("annotations", "os")


app: Any = _configured(Celery("celery_jobs", set_as_current=False))

# `-P threads` is the pool that can grow and whose threads never hold a process that must end
ALIASES["threads"] = "celery_jobs.tasks.pool:GrowingThreadPool"


def use_embedded_broker() -> None:
    """Point the app at the broker inside this process."""
    memory.register()
    app.conf.update(
        broker_url=f"{memory.SCHEME}://localhost/",
        broker_transport_options={},
        worker_disable_prefetch=False,
        task_acks_late=True,
    )


def import_tasks(settings: Settings) -> None:
    """Import the example task and the modules of JOBS_IMPORTS; SettingsError names one that cannot be imported."""
    for ours in ("celery_jobs.tasks.compute", "celery_jobs.tasks.call"):
        importlib.import_module(ours)
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    for name in settings.imports:
        try:
            importlib.import_module(name)
        except Exception as error:
            raise SettingsError(f"JOBS_IMPORTS names {name!r}, which cannot be imported: {error!r}") from error
    app.finalize()


@celeryd_init.connect(weak=False)
def _worker_starts(**_: Any) -> None:  # pyright: ignore[reportUnusedFunction]
    """Any worker of this app, also one that `celery -A celery_jobs.tasks worker` starts, runs our jobs as we do."""
    from celery_jobs.tasks.signals import connect

    try:
        import_tasks(load_settings())
    except SettingsError as error:
        raise SystemExit(str(error)) from None
    connect()

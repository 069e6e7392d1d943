"""Run a worker: `python -m celery_jobs.client my_jobs --url http://127.0.0.1:8000`.

Imports the modules, also from the working directory, and serves the classes that they offer: those decorated with
`celery_jobs.client.register`, or only those named as `my_jobs:Rotate,Scale`. Ends by SIGINT or SIGTERM when the running
task has finished, at once by a second one.

Exit codes: 0 ended as told, 1 the server refused something later, 2 cannot start (a module, the URL, no answer, a
refused registration), 130 or 143 ended at once by a second signal.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel

from celery_jobs.client.errors import ClientError
from celery_jobs.client.heartbeat import DEFAULT_INTERVAL_SECONDS
from celery_jobs.client.jobs import JobManager
from celery_jobs.client.offered import OFFERED

DEFAULT_URL: Final = "http://127.0.0.1:8000"
ENDED, REFUSED, CANNOT_START, INTERRUPTED = 0, 1, 2, 130
log = logging.getLogger("celery_jobs.client")


class CannotStart(Exception):
    """The reason why."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until told to end; the exit code."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)  # a line for each request
    try:
        offers = _offers(options.modules, options.room)
        jobs = JobManager(options.url, api_key=options.api_key)
    except (CannotStart, ValueError) as error:
        return _cannot(str(error))
    with jobs:
        try:
            _register(jobs, offers)
        except (ClientError, TypeError, RuntimeError) as error:  # the last: Pydantic can make no schema
            return _cannot(f"{options.url}: {error}")
        log.info("registered %s at %s as worker %s", ", ".join(jobs), jobs.api.base_url, jobs.worker_id)
        return _serve(jobs, options.heartbeat_interval)


def _parser() -> argparse.ArgumentParser:
    about, _, codes = (__doc__ or "").partition("\n\n")[2].partition("\n\n")
    parser = argparse.ArgumentParser("python -m celery_jobs.client", description=about, epilog=codes)
    parser.add_argument("modules", nargs="+", metavar="module[:NAME,…]", help="a module, or some of its classes")
    url = os.environ.get("JOBS_URL") or DEFAULT_URL
    parser.add_argument("--url", default=url, help=f"of the server (JOBS_URL, {DEFAULT_URL})")
    parser.add_argument(
        "--api-key", default=os.environ.get("JOBS_API_KEY"), help="(JOBS_API_KEY, which no list of processes shows)"
    )
    parser.add_argument("--room", help="for classes that name none (by default all rooms, which needs an admin's key)")
    parser.add_argument(
        "--heartbeat-interval",
        type=_seconds,
        default=DEFAULT_INTERVAL_SECONDS,
        metavar="SECONDS",
        help=f"shorter than the server's worker timeout ({DEFAULT_INTERVAL_SECONDS:g})",
    )
    return parser


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds < float("inf"):
        raise ValueError(text)
    return seconds


def _offers(modules: Sequence[str], room: str | None) -> list[tuple[type[BaseModel], str | None]]:
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    named = [task_class for module in modules for task_class in _named(module)]
    found = {task_class: OFFERED.get(task_class) for task_class in named}
    if any(":" not in module for module in modules):
        found |= OFFERED
    if not found:
        name = modules[0].partition(":")[0]
        raise CannotStart(
            f"{', '.join(modules)} offers no classes: decorate them with @celery_jobs.client.register, "
            f"or name them as in {name}:Rotate"
        )
    return [(task_class, own if own is not None else room) for task_class, own in found.items()]


def _named(module: str) -> list[type[BaseModel]]:
    """Imports the module; the classes that are named after it."""
    path, _, names = module.partition(":")
    try:
        imported = importlib.import_module(path)
    except Exception as error:
        raise CannotStart(f"{path} cannot be imported: {type(error).__name__}: {error}") from error
    return [_class_of(imported, path, name.strip()) for name in names.split(",") if name.strip()]


def _class_of(module: Any, path: str, name: str) -> type[BaseModel]:
    found = getattr(module, name, None)
    if not (isinstance(found, type) and issubclass(found, BaseModel)):
        raise CannotStart(f"{path}:{name} is not there, or no class that extends pydantic.BaseModel")
    return found


def _register(jobs: JobManager, offers: Sequence[tuple[type[BaseModel], str | None]]) -> None:
    for task_class, room in offers:
        jobs.register(task_class, room=room)


def _serve(jobs: JobManager, heartbeat_interval: float) -> int:
    try:
        jobs.serve(heartbeat_interval=heartbeat_interval)
    except ClientError as error:
        print(f"ended: {error}", file=sys.stderr)
        return REFUSED
    except KeyboardInterrupt:
        return INTERRUPTED
    return ENDED


def _cannot(reason: str) -> int:
    print(f"cannot start: {reason}", file=sys.stderr)
    return CANNOT_START


if __name__ == "__main__":
    sys.exit(main())

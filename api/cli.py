"""The command `celery-jobs`. What cannot start says in one paragraph what to do, and exits with 2."""

from __future__ import annotations

import importlib
import json
import logging
import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from celery_jobs.records.errors import DatabaseUnavailable, SettingsError

if TYPE_CHECKING:
    from fastapi import FastAPI

    from celery_jobs.records.settings import Settings

CANNOT_START = 2

app = typer.Typer(
    name="celery-jobs",
    help="A job service for Celery. The settings are environment variables (JOBS_…); options win over them.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


class Pool(StrEnum):
    """Where a worker runs its jobs."""

    prefork = "prefork"
    threads = "threads"


Host = Annotated[str | None, typer.Option(help="Address to listen on (JOBS_HOST, 127.0.0.1).")]
Port = Annotated[int | None, typer.Option(min=0, max=65535, help="Port to listen on (JOBS_PORT, 8000).")]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="Allow an address that others can reach without API keys (JOBS_INSECURE).")
]
DataDir = Annotated[
    Path | None, typer.Option(help="Folder of the SQLite file and the lock (JOBS_DATA_DIR, .celery-jobs).")
]
Slots = Annotated[int | None, typer.Option(min=1, help="Jobs that run at once in the worker (JOBS_CONCURRENCY).")]
InheritedSocket = Annotated[int | None, typer.Option("--fd", hidden=True)]


@app.command()
def up(
    host: Host = None,
    port: Port = None,
    data_dir: DataDir = None,
    concurrency: Slots = None,
    insecure: Insecure = False,
) -> None:
    """Run everything: one process without a broker, API and worker side by side with one."""
    from celery_jobs.api import serve, together
    from celery_jobs.tasks.configured import is_plugged

    settings = _settings(host, port, insecure, JOBS_DATA_DIR=data_dir, JOBS_CONCURRENCY=concurrency)
    alone = is_plugged(settings) or settings.embedded
    listener = serve.listen(settings)
    if alone:
        raise typer.Exit(serve.run(settings, listener))
    _migrate_own_file(settings)
    raise typer.Exit(together.run(settings, listener))


@app.command()
def api(
    host: Host = None,
    port: Port = None,
    workers: Annotated[int, typer.Option(min=1, help="API processes that share the port.")] = 1,
    insecure: Insecure = False,
    fd: InheritedSocket = None,
) -> None:
    """Run the HTTP API."""
    from celery_jobs.api import serve
    from celery_jobs.records import migrate
    from celery_jobs.tasks.configured import is_plugged

    settings = _settings(host, port, insecure)
    plugged = is_plugged(settings)
    if workers > 1 and plugged:
        raise SettingsError(
            f"--workers must be 1 with JOBS_SCHEDULER={settings.scheduler}: every process would have a scheduler, and "
            "so jobs, of its own."
        )
    if workers > 1 and settings.embedded:
        raise SettingsError(
            "--workers needs a broker: without CELERY_BROKER_URL the worker runs inside the one API process. "
            "Set CELERY_BROKER_URL, or leave --workers at 1."
        )
    listener = serve.listen(settings) if fd is None else serve.inherit(fd)
    if not settings.embedded and not plugged:
        migrate.check(settings)
    raise typer.Exit(serve.run(settings, listener, workers))


@app.command()
def worker(
    concurrency: Slots = None,
    pool: Annotated[Pool, typer.Option(help="Processes, or threads that also interrupt coroutines.")] = Pool.prefork,
    queues: Annotated[
        str | None, typer.Option("--queues", "-Q", help="Queues to serve, comma separated; by default every known one.")
    ] = None,
    max_pool: Annotated[
        int | None,
        typer.Option(min=1, help="Slots that the pool may grow to (JOBS_MAX_POOL, 4 a core or 1,000 threads)."),
    ] = None,
    metrics_port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Port of this worker's metrics; 0: any (JOBS_METRICS_PORT, none)."),
    ] = None,
    metrics_folder: Annotated[Path | None, typer.Option(hidden=True)] = None,
) -> None:
    """Run a Celery worker."""
    from celery_jobs.tasks.configured import is_plugged

    settings = _settings(
        None, None, False, JOBS_CONCURRENCY=concurrency, JOBS_MAX_POOL=max_pool, JOBS_METRICS_PORT=metrics_port
    )
    if is_plugged(settings):
        raise SettingsError(
            f"JOBS_SCHEDULER names {settings.scheduler}, which runs its jobs by itself: there is nothing for a Celery "
            "worker to do. Start the service with `celery-jobs api`."
        )
    if settings.embedded:
        raise SettingsError(
            "A worker of its own needs a broker: set CELERY_BROKER_URL, for example redis://localhost:6379/0."
        )
    from celery_jobs.tasks.worker import run_worker

    named = [name.strip() for name in (queues or "").split(",") if name.strip()]
    raise typer.Exit(run_worker(settings, settings.concurrency, pool.value, named or None, None, metrics_folder))


@app.command()
def migrate(data_dir: DataDir = None) -> None:
    """Make the tables, or bring them up to date."""
    from celery_jobs.records import migrate as migration

    settings = _settings(None, None, False, JOBS_DATA_DIR=data_dir)
    migration.upgrade(settings)
    typer.echo("The database is up to date.")


def _app(name: str | None, settings: Settings) -> FastAPI:
    from celery_jobs.api.app import create_app

    if name is None:
        return create_app(settings)
    module, _, variable = name.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    try:
        found: FastAPI = getattr(importlib.import_module(module), variable or "app")
    except Exception as error:
        raise SettingsError(f"--app names {name!r}, which cannot be imported: {error!r}") from error
    return found


@app.command()
def openapi(
    output: Annotated[Path | None, typer.Option(help="Write to this file and not to standard output.")] = None,
    app: Annotated[str | None, typer.Option(help="A service of your own, module:variable, and not this one.")] = None,
) -> None:
    """Print the OpenAPI document of the service as it is configured; nothing is started."""
    document = json.dumps(_app(app, _settings(None, None, False)).openapi(), indent=2) + "\n"
    if output is None:
        typer.echo(document, nl=False)
        return
    try:
        output.write_text(document, encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"{output} cannot be written ({error.strerror}); name another file with --output") from None


def main() -> None:
    """Run the command line."""
    try:
        app()
    except SettingsError as error:
        _give_up(str(error), CANNOT_START)
    except DatabaseUnavailable as error:
        reason = " ".join(error.reason.split())
        _give_up(f"The database cannot be reached ({reason}). Start it, or set DATABASE_URL to another one.", 1)


def _settings(host: str | None, port: int | None, insecure: bool, **options: object) -> Settings:
    """The settings with the options over them; in the environment, so that child processes agree."""
    from celery_jobs.records.settings import load_settings

    level = os.environ.get("LOG_LEVEL") or "INFO"
    if level.upper() not in logging.getLevelNamesMapping():
        raise SettingsError(f"LOG_LEVEL={level} is no level of logging; write DEBUG, INFO, WARNING, ERROR or CRITICAL")
    named = {"JOBS_HOST": host, "JOBS_PORT": port, "JOBS_INSECURE": insecure or None, **options}
    os.environ.update({name: str(value) for name, value in named.items() if value is not None})
    return load_settings()


def _migrate_own_file(settings: Settings) -> None:
    """A SQLite file belongs to this service alone, so it migrates by itself; a server only by `migrate`."""
    from celery_jobs.records import migrate

    if settings.database_url.startswith("sqlite"):
        migrate.upgrade(settings)
    else:
        migrate.check(settings)


def _give_up(message: str, code: int) -> None:
    print(f"celery-jobs: {message}", file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()

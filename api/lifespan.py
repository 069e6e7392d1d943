"""The life of the service: scheduler and streams start and stop with the app (contract, sections 4 and 6).

`app.router.lifespan_context` alone runs all of it, in a test as well as under uvicorn.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence

from fastapi import FastAPI
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from celery_jobs.api.deps import AnyService
from celery_jobs.api.health import Check, HealthWatch
from celery_jobs.api.joblib import life as remote
from celery_jobs.api.signals import heard_before_the_server
from celery_jobs.api.stream.all_jobs import AllJobs
from celery_jobs.api.stream.feed import Feed
from celery_jobs.api.stream.hub import Hub
from celery_jobs.api.stream.shared import SharedRows
from celery_jobs.records.errors import DatabaseUnavailable, SettingsError
from celery_jobs.records.remote.settings import JobLibSettings
from celery_jobs.tasks.service import JobService
from celery_jobs.tasks.surface import Scheduler

Hook = Callable[[FastAPI], Awaitable[None]]


@contextlib.asynccontextmanager
async def run_jobs(
    app: FastAPI, scheduler: Scheduler, service: AnyService, remote_settings: JobLibSettings
) -> AsyncGenerator[None]:
    """Scheduler, hub and readers; at the end streams close first, then the scheduler drains, then the database goes."""
    hub = Hub()
    app.state.scheduler, app.state.service = scheduler, service
    app.state.hub = hub
    app.state.health = HealthWatch(service.health)
    with failing_plainly(app):
        await service.start()
    app.state.rows = SharedRows(service)
    all_jobs = app.state.all_jobs = AllJobs(service, hub)
    readers = {
        asyncio.create_task(Feed(service, hub).run(), name="stream feed"),
        asyncio.create_task(all_jobs.run(), name="stream of all jobs"),
    }
    with _told_first(hub, service):  # to the end, since a second signal cuts it short
        try:
            async with _remote_work(app, service, hub, remote_settings):
                yield
        finally:
            hub.close()
            for reader in readers:
                reader.cancel()
            await asyncio.wait(readers)
            await service.shutdown()


def _remote_work(
    app: FastAPI, service: AnyService, hub: Hub, settings: JobLibSettings
) -> contextlib.AbstractAsyncContextManager[None]:
    """Remote workers live in the record table, which another implementation of a scheduler does not have."""
    return remote.run(app, service, hub, settings) if isinstance(service, JobService) else contextlib.nullcontext()


@contextlib.asynccontextmanager
async def run_without_jobs(app: FastAPI) -> AsyncGenerator[None]:
    """Health alone: a service without jobs needs nothing."""
    app.state.hub, app.state.health = Hub(), HealthWatch(_no_checks)
    try:
        yield
    finally:
        app.state.hub.close()


async def _no_checks() -> dict[str, Check]:
    return {}


@contextlib.asynccontextmanager
async def run_hooks(app: FastAPI, startup: Sequence[Hook], shutdown: Sequence[Hook]) -> AsyncGenerator[None]:
    """The hooks of the builder's user; those at the end run while the scheduler still works, in reverse order."""
    async with contextlib.AsyncExitStack() as stack:
        for hook in reversed(shutdown):
            stack.push_async_callback(hook, app)
        for hook in startup:
            await hook(app)
        yield


@contextlib.contextmanager
def failing_plainly(app: FastAPI) -> Generator[None]:
    """What the user can put right is told in plain words."""
    try:
        yield
    except (SettingsError, DatabaseUnavailable) as error:
        app.state.startup_failure = error
        raise


class PlainStartupFailure:
    """Tells the server in plain words why the service cannot start, without a traceback."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on everything; only the text of a failed startup changes."""
        if scope["type"] != "lifespan":
            await self.app(scope, receive, send)
            return

        async def plain(message: Message) -> None:
            reason = getattr(scope["app"].state, "startup_failure", None)
            if reason is not None and message["type"] == "lifespan.startup.failed":
                message = {**message, "message": str(reason)}
            await send(message)

        await self.app(scope, receive, plain)


@contextlib.contextmanager
def _told_first(hub: Hub, service: AnyService) -> Generator[None]:
    """Streams end and nothing new is taken as soon as a signal says so."""
    loop = asyncio.get_running_loop()

    def stop(again: bool) -> None:
        hub.close()
        service.begin_shutdown()
        if again:
            service.hurry()

    with heard_before_the_server(lambda again: loop.call_soon_threadsafe(stop, again)):
        yield

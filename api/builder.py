"""Builds a service: `BaseServiceBuilder(info=…).with_jobs(…).build()` (contract, section 6)."""

from __future__ import annotations

import contextlib
import math
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

from fastapi import APIRouter, FastAPI
from pydantic import BaseModel, ConfigDict, Field
from starlette.middleware import Middleware

from celery_jobs.api import lifespan, monitoring, openapi, problems
from celery_jobs.api.auth import KeyCheck
from celery_jobs.api.deps import AnyService
from celery_jobs.api.guard import AnswerWhenCutOff, BodyLimit, Cors, OriginGuard, Unforeseen
from celery_jobs.api.joblib import routers as joblib
from celery_jobs.api.joblib.problems import ProblemException, problem_exception_handler
from celery_jobs.api.lifespan import Hook
from celery_jobs.api.plugged.service import PluggedService
from celery_jobs.api.problems import NOT_SUPPORTED
from celery_jobs.api.routes import compute, dashboard, health, jobs, metrics, queues, tasks
from celery_jobs.api.schemas.problem import reference
from celery_jobs.api.task_route import TaskRouter
from celery_jobs.records.queues import check_limit
from celery_jobs.records.record import JobRecord
from celery_jobs.records.remote.settings import JobLibSettings, load_joblib_settings
from celery_jobs.records.settings import ApiKey, Settings, given_keys, load_settings
from celery_jobs.tasks import metrics as counting
from celery_jobs.tasks.configured import make_scheduler
from celery_jobs.tasks.service import JobService
from celery_jobs.tasks.surface import Scheduler

DEFAULT_PREFIX = "/api/v1/jobs"
DEFAULT_SHUTDOWN_TIMEOUT_SECONDS = 10.0
# what no other implementation of a scheduler has
_OURS_ALONE: Final[dict[int | str, dict[str, Any]]] = {NOT_SUPPORTED.status: reference(NOT_SUPPORTED)}
_EXPOSED_HEADERS = ["Location", "Link", "Retry-After", "Preference-Applied", "Idempotent-Replayed"]


class ServiceInfo(BaseModel):
    """What a service is called."""

    model_config = ConfigDict(extra="forbid")

    id: str = Field(min_length=1)
    display_name: str
    version: str = "1.0.0"
    summary: str | None = None
    description: str | None = None


@dataclass(frozen=True, slots=True)
class JobOptions:
    """The values passed to `with_jobs`."""

    prefix: str = DEFAULT_PREFIX
    tags: Sequence[str] | None = None
    max_concurrency: int | None = None
    shutdown_timeout: float = DEFAULT_SHUTDOWN_TIMEOUT_SECONDS


class BaseServiceBuilder:
    """Collects what a service consists of; `build` makes the app."""

    def __init__(self, *, info: ServiceInfo, settings: Settings | None = None) -> None:
        self._info = info
        self._settings = settings
        self._remote_settings: JobLibSettings | None = None
        self._job_options: JobOptions | None = None
        self._health = False
        self._auth = False
        self._api_keys: dict[str, ApiKey] = {}
        self._monitoring = False
        self._routers: list[APIRouter] = []
        self._own: list[APIRouter] = []
        self._on_startup: list[Hook] = []
        self._on_shutdown: list[Hook] = []

    def with_jobs(
        self,
        prefix: str = DEFAULT_PREFIX,
        tags: Sequence[str] | None = None,
        max_concurrency: int | None = None,
        shutdown_timeout: float = DEFAULT_SHUTDOWN_TIMEOUT_SECONDS,
    ) -> Self:
        """Serve jobs below `prefix`, and tasks, queues and the example task beside it; a bad value is a ValueError."""
        if not prefix.startswith("/") or prefix.endswith("/"):
            raise ValueError(f"prefix must start with a slash and not end with one, not {prefix!r}")
        check_limit(max_concurrency)
        timeout = _seconds(shutdown_timeout)
        self._job_options = JobOptions(prefix, tags, max_concurrency, timeout)
        return self

    def with_health(self) -> Self:
        """Serve `/health` with its stream, `/livez` and `/readyz`."""
        self._health = True
        return self

    def with_monitoring(self) -> Self:
        """Serve `/metrics` for Prometheus."""
        self._monitoring = True
        return self

    def with_auth(self, api_keys: Mapping[str, ApiKey | Mapping[str, Any]] | str | Path | None = None) -> Self:
        """Demand an API key of every caller: those of JOBS_API_KEYS, and where that is not set these.

        `api_keys`: each key with its identity, and its scopes or admin, or a JSON file with them. `build` raises
        ValueError where there are no keys at all.
        """
        self._auth = True
        self._api_keys = given_keys(api_keys)
        return self

    def include_router(self, router: APIRouter) -> Self:
        """Serve a router of your own."""
        self._routers.append(router)
        return self

    def on_startup(self, hook: Hook) -> Self:
        """Await `hook(app)` when the scheduler runs and before the first request."""
        self._on_startup.append(hook)
        return self

    def on_shutdown(self, hook: Hook) -> Self:
        """Await `hook(app)` after the last request and before the scheduler drains."""
        self._on_shutdown.append(hook)
        return self

    def build(self) -> FastAPI:
        """The app; nothing runs before its lifespan does. SettingsError when a setting is wrong."""
        settings = self._settings = self._with_keys(self._settings or load_settings())
        self._remote_settings = load_joblib_settings()
        app = FastAPI(
            title=self._info.display_name,
            version=self._info.version,
            summary=self._info.summary,
            description=self._info.description or "",
            lifespan=self._lifespan,
            middleware=_middleware(settings),
            redirect_slashes=False,
        )
        app.state.guarded = True  # by its keys, or by OriginGuard
        problems.install(app)
        app.add_exception_handler(ProblemException, problem_exception_handler)
        self._route(app)
        openapi.install(app, self._own, partial(self._record_class, app), with_keys=bool(settings.api_keys))
        return app

    def _with_keys(self, settings: Settings) -> Settings:
        if not self._auth or settings.api_keys:
            return settings
        if not self._api_keys:
            raise ValueError("with_auth needs keys: give it some, or set JOBS_API_KEYS")
        return settings.model_copy(update={"api_keys": self._api_keys})

    def _create_scheduler(self, job_options: JobOptions) -> Scheduler:
        """The scheduler of the service; override it to plug in another. JOBS_SCHEDULER names one without."""
        settings = self._settings or load_settings()
        return make_scheduler(settings, job_options.max_concurrency, job_options.shutdown_timeout)

    def _record_class(self, app: FastAPI) -> type[JobRecord]:
        """What the document shows as a record; where none runs yet, a scheduler is made for it, and not started."""
        service: AnyService | None = getattr(app.state, "service", None)
        if service is None and self._job_options is not None:
            service = self._service_of(self._create_scheduler(self._job_options), self._job_options)
        return JobRecord if service is None else service.hooks.record_class

    def _service_of(self, scheduler: Scheduler, options: JobOptions) -> AnyService:
        """The scheduler as our endpoints know it."""
        settings = self._settings or load_settings()
        if isinstance(scheduler, JobService):
            scheduler.serve_in(settings, options.shutdown_timeout)
            return scheduler
        if isinstance(scheduler, Scheduler):
            limit, timeout = options.max_concurrency, options.shutdown_timeout
            return PluggedService(scheduler, settings, max_concurrency=limit, shutdown_timeout=timeout)
        raise TypeError(f"_create_scheduler must return a Scheduler, not {type(scheduler).__name__}")

    @contextlib.asynccontextmanager
    async def _lifespan(self, app: FastAPI) -> AsyncGenerator[None]:
        async with contextlib.AsyncExitStack() as stack:
            if self._monitoring:
                counting.enable()
            if self._job_options is None:
                await stack.enter_async_context(lifespan.run_without_jobs(app))
            else:
                with lifespan.failing_plainly(app):
                    scheduler = self._create_scheduler(self._job_options)
                service = self._service_of(scheduler, self._job_options)
                remote = self._remote_settings or load_joblib_settings()
                await stack.enter_async_context(lifespan.run_jobs(app, scheduler, service, remote))
            if self._monitoring and self._job_options is not None:
                await stack.enter_async_context(monitoring.tell_streams(app))
            await stack.enter_async_context(lifespan.run_hooks(app, self._on_startup, self._on_shutdown))
            yield

    def _route(self, app: FastAPI) -> None:
        options = self._job_options
        if options is not None:
            base = options.prefix.rpartition("/")[0]
            app.state.jobs_prefix = options.prefix
            app.state.id_prefixes = (options.prefix, f"{base}/compute")
            names = [str(tag) for tag in options.tags or ("jobs",)]
            # a request tries one route after the other, so what is called most comes first
            self._serve(app, compute.router, base)
            self._serve(app, tasks.submits, f"{base}/tasks", "tasks")
            self._serve(app, joblib.BUSY, joblib.PREFIX, joblib.TAG, responses=_OURS_ALONE)
            self._serve(app, jobs.router, options.prefix, *names)
            self._serve(app, tasks.router, f"{base}/tasks", "tasks")
            self._serve(app, queues.router, f"{base}/queues", "queues")
            for router in joblib.OTHERS:
                self._serve(app, router, joblib.PREFIX, joblib.TAG, responses=_OURS_ALONE)
            self._serve(app, joblib.me, "", responses=_OURS_ALONE)
            app.include_router(joblib.pages)
        if self._health:
            self._serve(app, health.router, "", "health")
        if self._monitoring:
            self._serve(app, metrics.router, "", "health")
        for router in self._routers:
            if isinstance(router, TaskRouter):
                self._own.append(router)
            app.include_router(router)
        app.include_router(dashboard.router)

    def _serve(self, app: FastAPI, router: APIRouter, prefix: str, *tags: str, **options: Any) -> None:
        """Include a router of ours, whose routes OpenAPI describes in full."""
        self._own.append(router)
        unique = openapi.operation_id
        app.include_router(router, prefix=prefix, tags=[*tags], generate_unique_id_function=unique, **options)


def _middleware(settings: Settings) -> list[Middleware]:
    """Outermost first. With keys, a page of another site can do nothing without one, so its origin does not matter."""
    origins = settings.cors_origins
    layers = [Middleware(lifespan.PlainStartupFailure)]
    if not settings.api_keys:
        layers.append(Middleware(OriginGuard, allowed_hosts=settings.allowed_hosts, allowed_origins=origins))
    if origins:
        layers.append(
            Middleware(
                Cors,
                allow_origins=origins,
                allow_methods=["*"],
                allow_headers=["*"],
                allow_credentials="*" not in origins,
                expose_headers=_EXPOSED_HEADERS,
            )
        )
        layers.append(Middleware(Unforeseen))
    if settings.api_keys:
        layers.append(Middleware(KeyCheck, keys=settings.api_keys))
    # inside of what adds headers, so that a page may read it
    return [*layers, Middleware(AnswerWhenCutOff), Middleware(BodyLimit, limit=settings.max_body_bytes)]


def _seconds(value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise ValueError(f"shutdown_timeout must be a number of seconds, at least 0, not {value!r}")
    return float(value)

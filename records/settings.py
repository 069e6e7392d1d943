"""Every setting of the service, from the environment; a wrong one is named together with what to write instead."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, ValidationError, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from celery_jobs.records.engine import database_url
from celery_jobs.records.errors import SettingsError
from celery_jobs.records.spelling import nearest

Scope = Literal["read", "submit", "cancel"]


class ApiKey(BaseModel, extra="forbid"):
    """Whom a key stands for and what it may do."""

    identity: str = Field(min_length=1)
    admin: bool = False
    scopes: frozenset[Scope] = frozenset({"read", "submit", "cancel"})


def listed(value: Any) -> Any:
    """A JSON list or comma separated words."""
    if not isinstance(value, str):
        return value
    text = value.strip()
    if text.startswith("["):
        return json.loads(text)
    return [word.strip() for word in text.split(",") if word.strip()]


_ORIGIN = re.compile(r"([a-z][a-z0-9+.-]*)://(\[[0-9a-f:.]+\]|[^/:?#@\s]+)(?::([0-9]{1,5}))?/?")
_USUAL_PORTS = {"http": "80", "https": "443"}


def _origin(text: str) -> str:
    """As browsers spell it: in lower case, without the port that its scheme has anyway."""
    if text == "*":
        return text
    match = _ORIGIN.fullmatch(text.lower())
    if match is None:
        raise ValueError(f"{text!r} is no origin; write it as https://app.example, with the port where it has one")
    scheme, host, port = match.groups()
    return f"{scheme}://{host}" + (f":{port}" if port and port != _USUAL_PORTS.get(scheme) else "")


_BROKERS = ("redis", "rediss", "sentinel", "amqp", "amqps", "pyamqp")

Words = Annotated[list[str], NoDecode]
# longer than a year is a slip, and what far longer is overflows somewhere
Seconds = Annotated[float, Field(ge=0, le=366 * 86400, allow_inf_nan=False)]


def _keys(text: str) -> dict[str, Any]:
    if not text.strip().startswith("{"):
        text = Path(text.strip()).read_text(encoding="utf-8")
    keys: dict[str, Any] = json.loads(text)
    if any(not key for key in keys):
        raise ValueError("an API key must not be empty")
    return keys


def given_keys(given: Mapping[str, ApiKey | Mapping[str, Any]] | str | Path | None) -> dict[str, ApiKey]:
    """Keys that a program gives, as JSON, as the path of a file, or as they are; ValueError for what are none."""
    keys: Mapping[str, Any] = _keys(str(given)) if isinstance(given, str | Path) else given or {}
    return {key: ApiKey.model_validate(about) for key, about in keys.items()}


class Settings(BaseSettings):
    """The settings, one environment variable each (contract, section 9)."""

    model_config = SettingsConfigDict(env_prefix="JOBS_", env_ignore_empty=True, extra="ignore", frozen=True)

    broker_url: str | None = Field(
        default=None,
        validation_alias="CELERY_BROKER_URL",
        description="The Celery broker. Without one the service is one process with broker and worker inside.",
        examples=["redis://localhost:6379/0", "amqp://guest@localhost//"],
    )
    result_backend: str | None = Field(
        default=None,
        validation_alias="CELERY_RESULT_BACKEND",
        description="A result backend for other Celery programs on the same broker; the service itself needs none.",
        examples=["redis://localhost:6379/1"],
    )
    database: str | None = Field(
        default=None,
        validation_alias="DATABASE_URL",
        description="The database of the records. Without it: the SQLite file `jobs.db` in the data folder.",
        examples=["postgresql://user:password@localhost/jobs", "sqlite:////var/lib/jobs.db"],
    )
    data_dir: Path = Field(
        default=Path(".celery-jobs"),
        description="Folder of the SQLite file, and of the lock that keeps a second service without a broker out.",
    )
    host: str = Field(default="127.0.0.1", description="Address to listen on.")
    port: int = Field(default=8000, ge=0, le=65535, description="Port to listen on; 0 takes a free one.")
    insecure: bool = Field(
        default=False,
        description="Listen on an address that other machines may reach, although there are no API keys; "
        "`JOBS_ALLOWED_HOSTS` names what they call it.",
    )
    imports: Words = Field(
        default=[],
        description="Modules with tasks; API and workers load them.",
        examples=["my_tasks,reports.tasks"],
    )
    scheduler: str | None = Field(
        default=None,
        pattern=r"^[\w.]+:\w+$",
        description="A scheduler of your own, `module:Class`: `up` and `api` serve it, workers load it for its hooks. "
        "Without it: the service's.",
        examples=["my_service:TaggedScheduler"],
    )
    default_queue: str = Field(default="jobs", min_length=1, description="The queue of tasks that name none.")
    max_concurrency: int | None = Field(
        default=None,
        ge=1,
        le=2**31 - 1,
        description="How many jobs of the default queue may run at once, over all workers; a limit that was set while "
        "the service ran wins. Without it: no limit.",
    )
    concurrency: int | None = Field(
        default=None,
        ge=1,
        le=100_000,
        description="How many jobs a worker runs at once. Without it: one per core; 32 in a service without a broker.",
    )
    max_pool: int | None = Field(
        default=None,
        ge=1,
        le=100_000,
        description="How many slots a worker's pool may grow to when a limit asks for more. Without it: 4 a core on "
        "prefork, 1,000 threads.",
    )
    shutdown_timeout_seconds: Seconds | None = Field(
        default=None,
        description="How long running jobs may go on at shutdown before they are canceled. Without it: 10; a `worker` "
        "waits until they end.",
    )
    worker_timeout_seconds: float = Field(
        default=60.0,
        gt=0,
        le=7 * 86400,
        allow_inf_nan=False,
        description="A worker that is silent for longer (at the earliest for half as long) counts as dead, and its "
        "jobs end or run again.",
    )
    cancel_grace_seconds: Seconds = Field(
        default=10.0,
        description="After a cancel by force, how long the process that runs the job is left alone before it is ended.",
    )
    outage_patience_seconds: Seconds = Field(
        default=600.0, description="How long a worker tries to record the end of a job while the database is away."
    )
    idempotency_seconds: Seconds = Field(
        default=86400.0, gt=0, description="How long an `Idempotency-Key` is remembered."
    )
    retention_seconds: float | None = Field(
        default=None,
        gt=0,
        le=100 * 366 * 86400,
        allow_inf_nan=False,
        description="How long the record of a job stays after its end; then it is deleted, with its result and its "
        "`Idempotency-Key`. Without it: for ever.",
    )
    long_poll_max_wait_seconds: float = Field(
        default=120.0,
        gt=0,
        le=3600,
        allow_inf_nan=False,
        description="The longest time that `Prefer: wait=N` may wait for the end of a job.",
    )
    metrics_port: int | None = Field(
        default=None,
        ge=0,
        le=65535,
        description="Port of a worker's own `/metrics`; 0 takes a free one. Without it: none. An API process serves "
        "its `/metrics` on its own port.",
    )
    metrics_host: str = Field(default="127.0.0.1", description="Address of a worker's own `/metrics`.")
    max_body_bytes: int = Field(
        default=1 << 20, ge=1024, le=1 << 30, description="A larger body of a request is refused with 413."
    )
    max_result_bytes: int = Field(
        default=1 << 20, ge=1024, le=1 << 30, description="A job whose result is larger, as JSON, fails."
    )
    cors_origins: Words = Field(
        default=[],
        description="Web pages of these origins may call the service from a browser; `*` stands for all.",
        examples=["https://app.example,http://localhost:5173"],
    )
    allowed_hosts: Words = Field(
        default=[],
        description="Names by which the service may be called without API keys, besides those of this machine; `*` "
        "stands for all.",
        examples=["jobs.example"],
    )
    api_keys: Annotated[dict[str, ApiKey], NoDecode] = Field(
        default={},
        description="Every key with its identity, and its `scopes` or `admin`. Where there are keys, a call needs one.",
        examples=['{"<key>": {"identity": "alice", "scopes": ["read", "submit", "cancel"]}}', "/etc/jobs/keys.json"],
    )

    _words = field_validator("imports", "cors_origins", "allowed_hosts", mode="before")(listed)

    @field_validator("cors_origins")
    @classmethod
    def _origins(cls, value: list[str]) -> list[str]:
        return [_origin(each) for each in value]

    @field_validator("api_keys", mode="before")
    @classmethod
    def _keys(cls, value: Any) -> Any:
        """JSON, or the path of a file with JSON."""
        return _keys(value) if isinstance(value, str) else value

    @field_validator("max_pool")
    @classmethod
    def _no_smaller_than_at_start(cls, value: int | None, known: ValidationInfo) -> int | None:
        slots = known.data.get("concurrency")
        if value is not None and slots is not None and value < slots:
            raise ValueError(f"is less than the {slots} slots that the pool starts with (JOBS_CONCURRENCY)")
        return value

    @field_validator("broker_url")
    @classmethod
    def _known_broker(cls, value: str | None) -> str | None:
        if value is not None and value.partition("://")[0] not in _BROKERS:
            raise ValueError(f"names a broker of an unknown kind; the service knows {', '.join(_BROKERS)}")
        return value

    @property
    def embedded(self) -> bool:
        """True when no broker is configured: the worker then runs inside the API process."""
        return self.broker_url is None

    @property
    def database_url(self) -> str:
        """The database, as configured or in the data folder."""
        return self.database or f"sqlite:///{self.data_dir / 'jobs.db'}"


_ALIASES = {"broker_url": "CELERY_BROKER_URL", "result_backend": "CELERY_RESULT_BACKEND", "database": "DATABASE_URL"}


def environment_names() -> dict[str, str]:
    """The environment variable of each field."""
    return {name: _ALIASES.get(name, f"JOBS_{name.upper()}") for name in Settings.model_fields}


# read by other parts (commands that talk to a server), so no misspelling
_ELSEWHERE = ("JOBS_URL", "JOBS_API_KEY")


def load_settings(**overrides: Any) -> Settings:
    """The settings in force; SettingsError names every wrong one and what to write."""
    _refuse_misspelt(os.environ)
    try:
        settings = Settings(**overrides)
    except ValidationError as error:
        raise SettingsError(_explain(error)) from None
    except OSError as error:  # what it names is not shown: it may be keys that are no JSON
        raise SettingsError(f"JOBS_API_KEYS is no JSON, and names no file that can be read: {error.strerror}") from None
    database_url(settings.database_url)
    return settings


def _refuse_misspelt(names: Iterable[str]) -> None:
    """A setting that has no effect is worse than none; case does not matter, as for those that have one."""
    known = [*environment_names().values(), *_ELSEWHERE]
    for name in sorted(names):
        if name.upper().startswith("JOBS_") and name.upper() not in known:
            meant = nearest(name.upper(), known)
            raise SettingsError(f"{name} is no setting of this service; did you mean {meant}?")


# keys, and addresses that may hold a password
_SECRET = ("JOBS_API_KEYS", "CELERY_BROKER_URL", "CELERY_RESULT_BACKEND", "DATABASE_URL")


def _explain(error: ValidationError) -> str:
    names = environment_names()
    fields = {name: field for field, name in names.items()}
    faults: list[str] = []
    for fault in error.errors(include_url=False, include_context=False):
        where = str(fault["loc"][0])
        name = names.get(where, where)  # the place of an alias is the alias
        message = fault["msg"].removeprefix("Value error, ")
        shown = "" if name in _SECRET else f" (it is {fault['input']!r})"
        faults.append(f"{name}: {message}{shown}. {Settings.model_fields[fields[name]].description}")
    return "\n".join(faults)

"""Every setting of the service, from the environment; a wrong one is named together with what to write instead."""

from __future__ import annotations

import difflib
import json
import math
import os
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from celery_jobs.records.engine import database_url
from celery_jobs.records.errors import SettingsError

Scope = Literal["read", "submit", "cancel"]


class ApiKey(BaseModel, extra="forbid"):
    """Whom a key stands for and what it may do."""

    identity: str = Field(min_length=1)
    admin: bool = False
    scopes: frozenset[Scope] = frozenset({"read", "submit", "cancel"})


def _listed(value: Any) -> Any:
    """A JSON list or comma separated words."""
    if not isinstance(value, str):
        return value
    text = value.strip()
    if text.startswith("["):
        return json.loads(text)
    return [word.strip() for word in text.split(",") if word.strip()]


_BROKERS = ("redis", "rediss", "sentinel", "amqp", "amqps", "pyamqp")

Words = Annotated[list[str], NoDecode]


class Settings(BaseSettings):
    """The settings, one environment variable each (contract, section 9)."""

    model_config = SettingsConfigDict(env_prefix="JOBS_", env_ignore_empty=True, extra="ignore", frozen=True)

    broker_url: str | None = Field(
        default=None,
        validation_alias="CELERY_BROKER_URL",
        description="The Celery broker (redis://… or amqp://…). Without it the service runs its own worker.",
    )
    result_backend: str | None = Field(
        default=None,
        validation_alias="CELERY_RESULT_BACKEND",
        description="A Celery result backend for other Celery programs; the service itself needs none.",
    )
    database: str | None = Field(
        default=None,
        validation_alias="DATABASE_URL",
        description="postgresql://… or sqlite:///…; by default a SQLite file in the data folder.",
    )
    data_dir: Path = Field(default=Path(".celery-jobs"), description="Folder of the SQLite file and the lock file.")
    host: str = Field(default="127.0.0.1", description="Address to listen on.")
    port: int = Field(default=8000, ge=0, le=65535, description="Port to listen on.")
    insecure: bool = Field(default=False, description="Allow an address that is no loopback one without API keys.")
    imports: Words = Field(default=[], description="Modules with tasks, comma separated; loaded by API and worker.")
    default_queue: str = Field(default="jobs", min_length=1, description="Queue of tasks that name none.")
    max_concurrency: int | None = Field(
        default=None, ge=1, description="How many jobs of the default queue may run at once, over all workers."
    )
    concurrency: int | None = Field(default=None, ge=1, description="Slots of a worker; the embedded one has 32.")
    shutdown_timeout_seconds: float | None = Field(
        default=None, ge=0, description="How long running jobs may finish at shutdown before they are canceled."
    )
    worker_timeout_seconds: float = Field(
        default=60.0, gt=0, le=7 * 86400, description="A worker silent for longer counts as dead, and its jobs end."
    )
    cancel_grace_seconds: float = Field(
        default=10.0, ge=0, description="After a forced cancel, how long the process that runs it is left alone."
    )
    outage_patience_seconds: float = Field(
        default=600.0, ge=0, description="How long a worker tries to write the end of a job while the database is down."
    )
    idempotency_seconds: float = Field(default=86400.0, gt=0, description="How long an Idempotency-Key is remembered.")
    max_body_bytes: int = Field(default=1 << 20, ge=1024, description="A larger request body is refused with 413.")
    max_result_bytes: int = Field(default=1 << 20, ge=1024, description="A job with a larger result fails.")
    cors_origins: Words = Field(
        default=[], description="Origins of other sites that may call the service from a browser."
    )
    allowed_hosts: Words = Field(default=[], description="Host names by which the service may be called without keys.")
    api_keys: Annotated[dict[str, ApiKey], NoDecode] = Field(
        default={}, description='API keys as JSON, {"<key>": {"identity": "alice", "admin": true}}, or a file with it.'
    )

    _words = field_validator("imports", "cors_origins", "allowed_hosts", mode="before")(_listed)

    @field_validator("api_keys", mode="before")
    @classmethod
    def _keys(cls, value: Any) -> Any:
        """JSON, or the path of a file with JSON."""
        if not isinstance(value, str):
            return value
        text = value.strip()
        if not text.startswith("{"):
            text = Path(text).read_text(encoding="utf-8")
        keys = json.loads(text)
        if any(not key for key in keys):
            raise ValueError("an API key must not be empty")
        return keys

    @field_validator(
        "shutdown_timeout_seconds", "worker_timeout_seconds", "cancel_grace_seconds", "outage_patience_seconds"
    )
    @classmethod
    def _finite(cls, value: float | None) -> float | None:
        if value is not None and not math.isfinite(value):
            raise ValueError("must be a finite number of seconds")
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
_ELSEWHERE = {"JOBS_URL", "JOBS_API_KEY"}


def load_settings(**overrides: Any) -> Settings:
    """The settings in force; SettingsError names every wrong one and what to write."""
    known = set(environment_names().values())
    for name in sorted(os.environ):
        if name.startswith("JOBS_") and name not in known | _ELSEWHERE:
            near = difflib.get_close_matches(name, sorted(known | _ELSEWHERE), n=1, cutoff=0.0)
            raise SettingsError(f"{name} is no setting of this service; did you mean {near[0]}?")
    try:
        settings = Settings(**overrides)
    except ValidationError as error:
        raise SettingsError(_explain(error)) from None
    except OSError as error:
        raise SettingsError(f"JOBS_API_KEYS names a file that cannot be read: {error}") from None
    database_url(settings.database_url)
    return settings


# keys, and addresses that may hold a password
_SECRET = ("JOBS_API_KEYS", "CELERY_BROKER_URL", "CELERY_RESULT_BACKEND", "DATABASE_URL")


def _explain(error: ValidationError) -> str:
    names = environment_names()
    faults: list[str] = []
    for fault in error.errors(include_url=False, include_context=False):
        field = str(fault["loc"][0]) if fault["loc"] else "settings"
        name = names.get(field, field)
        shown = "" if name in _SECRET else f" (it is {fault['input']!r})"
        description = Settings.model_fields[field].description if field in Settings.model_fields else ""
        faults.append(f"{name}: {fault['msg']}{shown}. {description}".strip())
    return "\n".join(faults)

"""The settings of remote work: `ZNDRAW_JOBLIB_…` (contract, section 8)."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from celery_jobs.records.errors import SettingsError
from celery_jobs.records.settings import listed

PREFIX = "ZNDRAW_JOBLIB_"
_WEEK = 7 * 86400


class JobLibSettings(BaseSettings):
    """What remote workers may register, and how long everybody is waited for."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="ignore")

    allowed_categories: Annotated[list[str], NoDecode] = Field(
        default=["modifiers", "selections", "analysis"],
        min_length=1,
        description="The categories of jobs that may be registered: comma separated, or a JSON list.",
    )
    worker_timeout_seconds: float = Field(
        default=60,
        gt=0,
        le=_WEEK,
        allow_inf_nan=False,
        description="A remote worker that is silent for longer is taken away: its running tasks fail, its claimed ones "
        "go back.",
    )
    sweeper_interval_seconds: float = Field(
        default=30,
        gt=0,
        le=_WEEK,
        allow_inf_nan=False,
        description="How often silent workers and jobs that nobody serves are looked for.",
    )
    long_poll_max_wait_seconds: float = Field(
        default=120,
        gt=0,
        le=3600,
        allow_inf_nan=False,
        description="The longest time that `Prefer: wait=N` may wait for a task to claim or for its end.",
    )
    claim_timeout_seconds: float | None = Field(
        default=None,
        gt=0,
        le=_WEEK,
        allow_inf_nan=False,
        description="A claimed task that is not reported running goes back after this. Without it: the worker timeout.",
    )

    _words = field_validator("allowed_categories", mode="before")(listed)

    @field_validator("allowed_categories")
    @classmethod
    def _no_delimiter(cls, value: list[str]) -> list[str]:
        for each in value:
            if not each.strip() or ":" in each or "/" in each:
                raise ValueError(f"holds {each!r}; a category must not be empty, nor hold ':' or '/'")
        return value

    @property
    def longest_claim_seconds(self) -> float:
        """How long a claim may stay without a report."""
        return self.worker_timeout_seconds if self.claim_timeout_seconds is None else self.claim_timeout_seconds


def load_joblib_settings() -> JobLibSettings:
    """The settings in force; SettingsError names every wrong one and what to write."""
    try:
        return JobLibSettings()
    except ValidationError as error:
        faults: list[str] = []
        for fault in error.errors(include_url=False, include_context=False):
            name = str(fault["loc"][0])
            message = fault["msg"].removeprefix("Value error, ")
            said = JobLibSettings.model_fields[name].description
            faults.append(f"{PREFIX}{name.upper()}: {message} (it is {fault['input']!r}). {said}")
        raise SettingsError("\n".join(faults)) from None

"""The record as people see it, and the narrow rows that streams and lists read."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Annotated, Any, Self, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, WithJsonSchema
from pydantic_core import PydanticUndefined, to_json
from ulid import ULID

from celery_jobs.records.ids import JobId, ulid_of
from celery_jobs.records.states import CancelMode, JobStatus
from celery_jobs.records.text import clean

# what an answer spells; requests may also say it in lower case, or as a UUID
Ulid = Annotated[
    ULID,
    WithJsonSchema(
        {"type": "string", "pattern": "^[0-7][0-9A-HJKMNP-TV-Z]{25}$", "examples": ["01JQRS7X6ZJ8T3V5W7Y9A1B3C5"]}
    ),
]


class Progress(BaseModel):
    """How far a job says it is."""

    model_config = ConfigDict(json_schema_serialization_defaults_required=True)

    current: float | int | None = None
    total: float | int | None = None
    message: str | None = None


class JobRecord(BaseModel):
    """One job: what was asked, where it runs and what became of it (contract, section 1). Times are UTC."""

    model_config = ConfigDict(from_attributes=True, json_schema_serialization_defaults_required=True)

    id: Ulid
    status: JobStatus
    submitted_at: datetime
    started_at: datetime | None = Field(default=None, description="The first start; retries do not move it.")
    finished_at: datetime | None = None
    error: str | None = Field(
        default=None, description="One line, `ExceptionType: message`, or why the system ended it."
    )
    error_traceback: str | None = None
    artifact_id: Ulid | None = None
    task: str | None = None
    queue: str | None = None
    worker: str | None = None
    attempt: int = Field(default=0, description="0 before the first start; each start adds one.")
    progress: Progress | None = None
    priority: int = 0
    tags: list[str] = []
    submitted_by: str | None = None
    cancel_requested_at: datetime | None = None
    cancel_mode: CancelMode | None = None
    retry_of: Ulid | None = None
    celery_id: str | None = Field(default=None, description="The Celery task id as Celery spells it.")
    run_at: datetime | None = None
    expires_at: datetime | None = None
    parent_id: str | None = None
    root_id: str | None = None
    links: dict[str, str] = {}

    @classmethod
    def of(cls, row: Any) -> Self:
        """The record of a row; columns that the query left out keep their defaults."""
        fields = dict(zip(row._fields, row, strict=True))
        for name in _NO_FIELDS & fields.keys():
            del fields[name]
        extra = fields.pop("extra", None)
        fields["celery_id"] = fields["celery_id"] or fields["id"]
        fields["status"] = _STATUS[fields["status"]]
        for name in ("id", "artifact_id", "retry_of"):
            fields[name] = fields[name] and ulid_of(fields[name])
        fields["tags"] = [] if fields["tags"] == "[]" else json.loads(fields["tags"])
        fields["cancel_mode"] = fields["cancel_mode"] and CancelMode(fields["cancel_mode"])
        fields["progress"] = fields["progress"] and _progress(fields["progress"])
        fields["links"] = {}
        if own_fields(cls):
            fields |= _extra(cls, extra)
        return _blank(cls).model_copy(update=fields)


NOT_LISTED = {"error_traceback"}  # fields that no list shows, nor the stream of all jobs

R = TypeVar("R", bound=JobRecord)


@cache
def _blank(model: type[R]) -> R:
    """Lists have 100,000 records: to copy one costs a third of building it."""
    return model.model_construct(id=ULID(bytes(16)), status=JobStatus.pending, submitted_at=datetime.min)  # noqa: DTZ901


@cache
def own_fields(model: type[JobRecord]) -> frozenset[str]:
    """The fields that a subclass of JobRecord adds."""
    return frozenset(model.model_fields.keys() - JobRecord.model_fields.keys())


def extra_json(record: JobRecord) -> str | None:
    """The fields that the record's class adds, as they are stored; None without any, ValueError if JSON cannot."""
    names = own_fields(type(record))
    return to_json(record.model_dump(mode="json", include=set(names)), inf_nan_mode="null").decode() if names else None


def checked(record: R, *names: str) -> R:
    """The record, whose added fields, and those named, are what their types say; ValueError where one is not."""
    model, values = type(record), dict[str, Any]()
    for name in own_fields(model).union(names):
        try:
            values[name] = _adapter(model, name).validate_python(getattr(record, name))
        except ValidationError as error:
            raise ValueError(f"{name} cannot be {getattr(record, name)!r:.100}: {error.errors()[0]['msg']}") from None
    return record.model_copy(update=values)


def _extra(model: type[JobRecord], stored: str | None) -> dict[str, Any]:
    """The values of the added fields; what is older than the class has its defaults, or None."""
    told: dict[str, Any] = json.loads(stored) if stored else {}
    fields: dict[str, Any] = {}
    for name in own_fields(model):
        if name in told:
            fields[name] = _typed(model, name, told[name])
        else:
            default = model.model_fields[name].get_default(call_default_factory=True, validated_data={})
            fields[name] = None if default is PydanticUndefined else default
    return fields


def _typed(model: type[JobRecord], name: str, value: Any) -> Any:
    try:
        return _adapter(model, name).validate_json(to_json(value))  # as JSON: a date is a text there, strictly too
    except ValidationError:
        return value  # stored by another version of the class: shown as it is, rather than not at all


@cache
def _adapter(model: type[JobRecord], name: str) -> TypeAdapter[Any]:
    field = model.model_fields[name]
    return TypeAdapter(
        cast(Any, Annotated[(field.annotation, *field.metadata)] if field.metadata else field.annotation)
    )


def _progress(stored: str) -> Progress:
    told: dict[str, Any] = json.loads(stored)
    if told.get("message"):
        told["message"] = clean(told["message"])  # an escaped half of a surrogate pair passed the database
    return Progress.model_construct(**told)


_STATUS = {str(status): status for status in JobStatus}
# columns of queries that make records, but not theirs
_NO_FIELDS = {
    *("seq", "result", "version", "progress_seq", "canceling_at", "requeued_at", "deleted_at"),
    *("change", "seen"),
    *("submitted_change", "started_change", "requeued_change", "canceling_change", "finished_change"),
}


@dataclass(frozen=True, slots=True)
class StreamRow:
    """What a stream needs of a job, besides its record."""

    id: JobId
    status: JobStatus
    attempt: int
    version: int
    progress_seq: int
    canceling_at: datetime | None
    requeued_at: datetime | None
    started_at: datetime | None
    deleted: bool
    record: JobRecord

    @classmethod
    def of(cls, row: Any, model: type[JobRecord] = JobRecord) -> Self:
        """The stream's view of a row read with STREAM_COLUMNS."""
        return cls(
            id=JobId(row.id),
            status=JobStatus(row.status),
            attempt=row.attempt,
            version=row.version,
            progress_seq=row.progress_seq,
            canceling_at=row.canceling_at,
            requeued_at=row.requeued_at,
            started_at=row.started_at,
            deleted=row.deleted_at is not None,
            record=model.of(row),
        )


@dataclass(frozen=True, slots=True)
class JobResult:
    """A record and its result as JSON text; None while there is none."""

    record: JobRecord
    result_json: str | None


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Which jobs a list or the stream of all jobs shows; None means any."""

    status: JobStatus | None = None
    task: str | None = None
    queue: str | None = None
    tags: tuple[str, ...] = ()  # every one of these
    submitted_after: datetime | None = None
    submitted_before: datetime | None = None

    def fits(self, record: JobRecord, *, any_status: bool = False) -> bool:
        """Whether the list would show this record; `any_status` asks about the other filters only."""
        return (
            (any_status or self.status is None or record.status is self.status)
            and (self.task is None or record.task == clean(self.task))
            and (self.queue is None or record.queue == clean(self.queue))
            and all(clean(tag) in record.tags for tag in self.tags)
            and (self.submitted_after is None or record.submitted_at > self.submitted_after)
            and (self.submitted_before is None or record.submitted_at < self.submitted_before)
        )


class QueueView(BaseModel):
    """A queue, its limit and its depth now."""

    name: str
    max_concurrency: int | None = Field(description="None is unlimited: then only the workers' own concurrency counts.")
    paused: bool
    pending: int
    running: int
    canceling: int
    workers: int

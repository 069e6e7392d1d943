"""The peer's list over the same record table: SQLAlchemy's ORM, a response model, LIMIT and OFFSET."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import datetime

from fastapi import HTTPException
from pydantic import BaseModel, ConfigDict
from sqlalchemy import DateTime, create_engine, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from benchmarks.subjects.http import app

__all__ = ["app"]

engine = create_engine(os.environ["BENCH_DATABASE"].replace("postgresql:", "postgresql+psycopg:"))


class Base(DeclarativeBase):
    type_annotation_map = {datetime: DateTime(timezone=True)}  # noqa: RUF012


class Job(Base):
    """What our lists show, too."""

    __tablename__ = "jobs"

    seq: Mapped[int] = mapped_column(primary_key=True)
    id: Mapped[str]
    status: Mapped[str]
    submitted_at: Mapped[datetime]
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]
    error: Mapped[str | None]
    artifact_id: Mapped[str | None]
    task: Mapped[str | None]
    queue: Mapped[str | None]
    worker: Mapped[str | None]
    attempt: Mapped[int]
    progress: Mapped[str | None]
    priority: Mapped[int]
    tags: Mapped[str]
    submitted_by: Mapped[str | None]
    cancel_requested_at: Mapped[datetime | None]
    cancel_mode: Mapped[str | None]
    retry_of: Mapped[str | None]
    celery_id: Mapped[str | None]
    run_at: Mapped[datetime | None]
    expires_at: Mapped[datetime | None]
    parent_id: Mapped[str | None]
    root_id: Mapped[str | None]


class JobView(BaseModel):
    model_config = ConfigDict(from_attributes=True)

    id: str
    status: str
    submitted_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    error: str | None
    artifact_id: str | None
    task: str | None
    queue: str | None
    worker: str | None
    attempt: int
    progress: str | None
    priority: int
    tags: str
    submitted_by: str | None
    cancel_requested_at: datetime | None
    cancel_mode: str | None
    retry_of: str | None
    celery_id: str | None
    run_at: datetime | None
    expires_at: datetime | None
    parent_id: str | None
    root_id: str | None


@app.get("/jobs", response_model=list[JobView])
def list_jobs(status: str | None = None, limit: int | None = None, offset: int = 0) -> Sequence[Job]:
    """By the primary key, which an index serves; many would sort by a time that none serves."""
    query = select(Job).order_by(Job.seq.desc()).limit(limit).offset(offset)
    if status is not None:
        query = query.where(Job.status == status)
    with Session(engine) as session:
        return session.scalars(query).all()


@app.get("/jobs/{job_id}", response_model=JobView)
def get_job(job_id: str) -> Job:
    with Session(engine) as session:
        job = session.scalar(select(Job).where(Job.id == job_id))
    if job is None:
        raise HTTPException(404)
    return job

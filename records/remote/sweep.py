"""Taking silent remote workers away, and what only they kept (contract, section 8). Safe twice at once."""

from __future__ import annotations

from sqlalchemy import Connection, select

from celery_jobs.records.clock import from_now
from celery_jobs.records.remote import claims, leaving, registering
from celery_jobs.records.remote.leaving import Gone
from celery_jobs.records.tables import jobs


def untidy(connection: Connection, told_for_seconds: float) -> bool:
    """Whether there is anything to tidy; the look before it."""
    told = select(jobs.c.seq).where(*leaving.held_after_end(), jobs.c.finished_at <= from_now(-told_for_seconds))
    return bool(registering.orphans(connection)) or connection.execute(told.limit(1)).first() is not None


def tidy(connection: Connection, told_for_seconds: float) -> list[str]:
    """Remove the jobs that nobody serves or needs, and what need not be told any more; the registrations removed."""
    connection.execute(leaving.let_go(jobs.c.finished_at <= from_now(-told_for_seconds)))
    return registering.remove_orphans(connection)


def return_overdue(connection: Connection, longest_claim_seconds: float) -> Gone:
    """Claims without a report go back."""
    rows = claims.return_overdue(connection, longest_claim_seconds)
    return Gone(returned=[row.id for row in rows], vacant=[row.registration for row in rows])

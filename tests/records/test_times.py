"""One clock, and times that come back as they went in (case C10)."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import insert, make_url, select, text

from celery_jobs.records.clock import from_now, now
from celery_jobs.records.record import JobRecord
from celery_jobs.records.states import JobStatus
from celery_jobs.records.tables import workers
from tests.records.conftest import migrate
from tests.records.faces import Face
from tests.records.making import in_state, record, set_columns, submit

FOREIGN = """
    import sys, time
    from celery_jobs.records import reads, submit, workers
    from celery_jobs.records.store import Store

    assert time.tzname != ("UTC", "UTC")
    store = Store(sys.argv[1])
    job = submit.NewJob("t", "jobs", expires_in_seconds=5.0)
    store.write(submit.insert_batch, [job])
    print(store.read(reads.record, job.id).model_dump_json())
"""


@pytest.fixture
def url_in_berlin(request: pytest.FixtureRequest, url: str) -> str:
    """PostgreSQL's own sessions live in another zone, too."""
    if url.startswith("sqlite"):
        return url
    url = request.getfixturevalue("postgres_server").new_database(migrate)  # it stays changed
    face = Face(url)
    statement = text(f"ALTER DATABASE {make_url(url).database} SET timezone = 'Europe/Berlin'")
    face.write(lambda connection: connection.execute(statement))
    face.close()
    return url


def test_every_time_is_utc_with_an_offset_whatever_the_zones_of_process_and_session(
    url_in_berlin: str, monkeypatch: pytest.MonkeyPatch
):
    url = url_in_berlin
    monkeypatch.setenv("TZ", "America/New_York")
    program = [sys.executable, "-c", textwrap.dedent(FOREIGN), url]
    ran = subprocess.run(program, capture_output=True, text=True, check=False, timeout=60)
    assert ran.returncode == 0, ran.stderr
    told = JobRecord.model_validate_json(ran.stdout)
    face = Face(url)
    seen = record(face, str(told.id))  # type: ignore[arg-type]
    face.close()
    assert (seen.submitted_at, seen.expires_at) == (told.submitted_at, told.expires_at)
    assert seen.expires_at is not None
    assert seen.expires_at - seen.submitted_at == timedelta(seconds=5)
    assert abs(datetime.now(UTC) - seen.submitted_at) < timedelta(seconds=30)
    assert '"submitted_at":"' + seen.submitted_at.isoformat().split("+")[0] in ran.stdout
    assert seen.submitted_at.utcoffset() == timedelta(0)


def test_the_times_of_a_job_are_in_order(store: Face):
    job = in_state(store, JobStatus.completed)
    found = record(store, job.id)
    assert found.started_at is not None
    assert found.finished_at is not None
    assert found.submitted_at <= found.started_at <= found.finished_at
    assert abs(datetime.now(UTC) - found.finished_at) < timedelta(seconds=30)


@pytest.fixture(scope="module")
def sqlite_clock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Face]:
    url = f"sqlite:///{tmp_path_factory.mktemp('clock')}/jobs.db"
    migrate(url)
    face = Face(url)
    yield face
    face.close()


def stored_and_read(face: Face, value: datetime) -> datetime | None:
    job_id = submit(face, run_at=value)
    return record(face, job_id).run_at


ANY_TIME = st.datetimes(
    datetime(2, 1, 2), datetime(9998, 12, 30), timezones=st.timezones()  # noqa: DTZ001
)  # fmt: skip


@given(ANY_TIME)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_time_comes_back_equal_and_in_utc(sqlite_clock: Face, value: datetime):
    found = stored_and_read(sqlite_clock, value)
    assert found == value.astimezone(UTC)
    assert found is not None
    assert found.tzinfo is UTC


def test_times_with_microseconds_and_odd_offsets_come_back_equal(store: Face):
    for micro in (0, 1, 999, 1000, 123456, 999000, 999999):
        value = datetime(2026, 3, 29, 2, 30, 59, micro, tzinfo=timezone(timedelta(hours=-9, minutes=-30)))
        assert stored_and_read(store, value) == value


def test_times_sort_as_they_are_not_as_they_are_written(store: Face):
    base = datetime(2026, 1, 1, tzinfo=UTC)
    steps = [0, 1, 500, 999, 1000, 1001, 1999, 2000, 10_000, 999_999]
    ids = {submit(store): base + timedelta(microseconds=step) for step in reversed(steps)}
    for job_id, value in ids.items():
        set_columns(store, job_id, started_at=value)
    from celery_jobs.records.tables import jobs

    in_order = store.read(lambda c: list(c.execute(select(jobs.c.started_at).order_by(jobs.c.started_at)).scalars()))
    assert in_order == sorted(ids.values())


@pytest.mark.parametrize(
    "value", [datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=timezone(timedelta(hours=-12)))]
)
def test_a_time_at_the_end_of_the_calendar_does_not_break_what_reads_it(store: Face, value: datetime):
    found = stored_and_read(store, value)
    assert found is not None
    assert abs(found.year - value.year) <= 1


def test_a_time_without_an_offset_is_refused(store: Face):
    with pytest.raises(Exception, match="without an offset"):
        submit(store, run_at=datetime(2026, 1, 1))  # noqa: DTZ001


@pytest.mark.parametrize("seconds", [0, 0.25, -0.25, 1.5, 60, -86400, 1e9, 0.0004])
def test_the_clock_of_the_database_counts_seconds(store: Face, seconds: float):
    at, clock = store.read(lambda connection: connection.execute(select(from_now(seconds), now())).one())
    assert abs((at - clock).total_seconds() - seconds) < 0.0015


def test_the_clock_stands_within_a_statement(store: Face):
    values = {"incarnation": "i", "name": "w", "started_at": now(), "seen_at": now(), "lease_until": now()}
    store.write(lambda connection: connection.execute(insert(workers).values(values)))
    row = store.read(lambda connection: connection.execute(select(workers)).one())
    assert row.started_at == row.seen_at == row.lease_until

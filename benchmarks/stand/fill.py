"""A record table of any size, by SQL: jobs that ended over the last weeks, four of five of them well.

As jobs of Celery workers, or as tasks of one registered job of the second API.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from benchmarks.stand.records import Records

AGE = timedelta(days=30)  # of the first job
_PREFIX = "01JQRS7X6Z"
_AT_ONCE = 50_000  # a shorter transaction keeps the service's own writer waiting less
_TRACEBACK = "Traceback (most recent call last):" + '\\n  File "tasks.py", line 7, in render' * 8

_INSERT = """
INSERT INTO jobs (id, task, queue, status, attempt, version, change, kwargs, tags, submitted_by, worker,
                  submitted_at, started_at, finished_at, result, error, error_traceback{remote_columns})
{series}
SELECT {id}, CASE n % 3 WHEN 0 THEN 'compute' WHEN 1 THEN 'noop' ELSE 'nap' END, 'jobs',
       CASE WHEN n % 5 = 2 THEN 'failed' WHEN n % 100 = 13 THEN 'canceled' ELSE 'completed' END,
       1, 3, {change}, '{{"duration": 1.5}}', CASE n % 10 WHEN 0 THEN '["nightly"]' ELSE '[]' END, 'local',
       'worker-1@host', {submitted}, {started}, {finished},
       CASE WHEN n % 5 = 2 OR n % 100 = 13 THEN NULL ELSE '42' END,
       CASE n % 5 WHEN 2 THEN 'ValueError: no such frame' END,
       CASE n % 5 WHEN 2 THEN '{traceback}' END{remote_values}
FROM {source}
"""
_REMOTE_COLUMNS = ", kind, room_id, job_name, registration, held_by"
_REMOTE_VALUES = ", 'remote', 'room-' || (n % 7), '{name}', '{registration}', 'local'"


@dataclass(frozen=True)
class _Dialect:
    series: str
    source: str
    id: str
    change: str  # no later than any change that is to come
    time: str  # with {} for seconds since the first job


# a number in hexadecimal is one in Crockford's base 32 too
_POSTGRES = _Dialect(
    series="",
    source="generate_series({first}, {last}) AS n",
    id=f"'{_PREFIX}' || lpad(upper(to_hex(n)), 16, '0')",
    change="pg_current_xact_id()::text::bigint",
    time=f"now() - interval '{AGE.days} days' + ({{}}) * interval '1 second'",
)
_SQLITE = _Dialect(
    series="WITH RECURSIVE series(n) AS (SELECT {first} UNION ALL SELECT n + 1 FROM series WHERE n < {last})",
    source="series",
    id=f"'{_PREFIX}' || printf('%016X', n)",
    change="(SELECT value FROM change_counter)",
    time=f"strftime('%Y-%m-%d %H:%M:%f', 'now', '-{AGE.days} days', ({{}}) || ' seconds')",
)


def fill(records: Records, count: int, remote: tuple[str, str] | None = None) -> None:
    """Add so many jobs to an empty table, one a second; then what autovacuum does after such a change.

    `remote`: they were tasks of the job with this full name and registration.
    """
    dialect = _SQLITE if records.sqlite else _POSTGRES
    values = "" if remote is None else _REMOTE_VALUES.format(name=remote[0], registration=remote[1])
    for first in range(1, count + 1, _AT_ONCE):
        last = min(first + _AT_ONCE - 1, count)
        records.run(
            _INSERT.format(
                series=dialect.series.format(first=first, last=last),
                source=dialect.source.format(first=first, last=last),
                id=dialect.id,
                change=dialect.change,
                submitted=dialect.time.format("n"),
                started=dialect.time.format("n + 0.02"),
                finished=dialect.time.format("n + 1.52"),
                traceback=_TRACEBACK,
                remote_columns=_REMOTE_COLUMNS if remote else "",
                remote_values=values,
            )
        )
    if not records.sqlite:
        records.run("VACUUM (ANALYZE) jobs")


def number_of(job_id: str) -> int:
    """Which of the jobs it is: 1 is the oldest."""
    return int(job_id.removeprefix(_PREFIX), 16)

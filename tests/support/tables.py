"""Records by the thousand, written straight into the table: what a service has after a long life."""

from __future__ import annotations

from typing import Final

from sqlalchemy import create_engine, text

_COLUMNS: Final = (
    "id, task, queue, status, attempt, version, change, kwargs, tags, submitted_at, started_at, finished_at, result"
)
_VALUES: Final = "'sample.note', 'jobs', 'completed', 1, 3, 0, '{}', '[]'"
_NUMBERED: Final = {
    "postgresql": (
        f"INSERT INTO jobs ({_COLUMNS}) SELECT '01A' || lpad(n::text, 23, '0'), {_VALUES}, t, t, t, '42' "
        "FROM (SELECT n, now() - interval '1 day' + n * interval '1 millisecond' AS t "
        "FROM generate_series(1, :many) AS n) AS rows"
    ),
    "sqlite": (
        "WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < :many) "
        f"INSERT INTO jobs ({_COLUMNS}) SELECT '01A' || printf('%023d', n), {_VALUES}, t, t, t, '42' "
        "FROM (SELECT n, strftime('%Y-%m-%d %H:%M:%f', 'now', '-1 day', (n / 1000.0) || ' seconds') AS t FROM numbers)"
    ),
}


def fill(database_url: str, many: int) -> None:
    """So many completed jobs, a millisecond apart, a day ago."""
    kind, _, rest = database_url.partition(":")
    driver = "postgresql+psycopg" if kind == "postgresql" else kind
    engine = create_engine(f"{driver}:{rest}")
    with engine.begin() as connection:
        connection.execute(text(_NUMBERED[kind]), {"many": many})
    engine.dispose()

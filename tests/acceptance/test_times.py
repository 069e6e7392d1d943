"""Times (case C10): every zone is set differently, and every answer is UTC all the same."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime

import psycopg
import pytest
from psycopg import sql

from tests.acceptance.kinds import own
from tests.support.stack import EMBEDDED, PREFORK, SQLITE, Kind, Stack

NewStack = Callable[..., Stack]

SLACK_SECONDS = 2.0


def set_zone(url: str, zone: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        name = sql.Identifier(url.rpartition("/")[2])
        connection.execute(sql.SQL("ALTER DATABASE {} SET timezone TO {}").format(name, sql.Literal(zone)))


@pytest.mark.slow
@own(PREFORK, slow=(EMBEDDED, SQLITE))
def test_times_are_utc_in_order_and_never_change(new_stack: NewStack, kind: Kind) -> None:
    stack = new_stack(kind, TZ="America/New_York")
    if kind.database == "postgresql":
        set_zone(stack.service.env["DATABASE_URL"], "Europe/Berlin")
    stack.start(worker=False)
    before = time.time()
    with_time = stack.jobs.submit("retrying", name=stack.name(), failures=1, countdown=0.1)
    with stack.jobs.stream(with_time, params={"poll_interval": 0.1}) as stream:
        first = stream.next().data
        if not kind.embedded:
            stack.worker(TZ="Asia/Kolkata")
        last = stream.rest()[-1].data
    after = time.time()
    record = stack.jobs.record(with_time)
    assert first is not None
    assert last is not None
    assert first["submitted_at"] == last["submitted_at"] == record["submitted_at"]
    assert (last["started_at"], last["finished_at"]) == (record["started_at"], record["finished_at"])
    times = [datetime.fromisoformat(record[name]) for name in ("submitted_at", "started_at", "finished_at")]
    assert all(each.utcoffset() is not None for each in times)
    assert times == sorted(times)
    for each in times:
        assert before - SLACK_SECONDS <= each.timestamp() <= after + SLACK_SECONDS
    listed = stack.jobs.list()[0]
    assert [listed[name] for name in ("submitted_at", "started_at", "finished_at")] == [
        record[name] for name in ("submitted_at", "started_at", "finished_at")
    ]
    result = stack.jobs.result(with_time)
    assert result["finished_at"] == record["finished_at"]

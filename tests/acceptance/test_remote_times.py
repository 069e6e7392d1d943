"""The times of remote tasks (case C10): every zone is set differently, and every answer is UTC all the same."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.acceptance.kinds import own
from tests.acceptance.test_times import SLACK_SECONDS, set_zone
from tests.support.jobs import Jobs
from tests.support.remote import Remote, timestamp
from tests.support.stack import EMBEDDED, PREFORK, SQLITE, Kind, Stack


@pytest.mark.slow
@own(PREFORK, slow=(EMBEDDED, SQLITE))
def test_times_are_utc_in_order_and_never_change(new_stack: Callable[..., Stack], kind: Kind) -> None:
    stack = new_stack(kind, TZ="America/New_York")
    if kind.database == "postgresql":
        set_zone(stack.service.env["DATABASE_URL"], "Europe/Berlin")
    stack.start(worker=False)
    worker, job = Remote(stack.apis[0].client).serving()
    before = time.time()
    submitted = worker.submit(job)
    claimed = worker.claim_one()
    running = worker.report(submitted, "running")
    done = worker.report(submitted, "completed")
    beat = worker.beat().json()["last_heartbeat"]
    after = time.time()
    assert submitted["created_at"] == claimed["created_at"] == done["created_at"]
    assert running["started_at"] == done["started_at"]
    moments = [timestamp(text) for text in (done["created_at"], done["started_at"], done["completed_at"], beat)]
    assert moments == sorted(moments)
    assert before - SLACK_SECONDS <= moments[0] <= moments[-1] <= after + SLACK_SECONDS
    record = Jobs(worker.client).record(done["id"])
    assert [record[name] for name in ("submitted_at", "started_at", "finished_at")] == [
        done[name] for name in ("created_at", "started_at", "completed_at")
    ]

"""Cancel by force: ending the child that runs a plain function, and nothing else (contract, section 2).

The child may go on to its next job at any moment, so it is stopped first, then the record is read, and only a child
that still runs the canceled job is ended: SIGTERM, and SIGKILL where that does not help.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import time
from collections.abc import Collection

from celery_jobs.records import runs
from celery_jobs.records.runs import OwnRun
from celery_jobs.records.states import CancelMode, JobStatus
from celery_jobs.records.store import Store

KILL_AFTER_SECONDS = 2.0
_log = logging.getLogger("celery_jobs.force")


class ForcedEnds:
    """Ends what was canceled by force when its grace has passed; the main process of a prefork worker has one."""

    def __init__(self, store: Store, incarnation: str, grace_seconds: float) -> None:
        self._store = store
        self._incarnation = incarnation
        self._grace_seconds = grace_seconds
        self._terminated_at: dict[tuple[int, str | None], float] = {}

    def look(self, rows: Collection[OwnRun], children: Collection[int]) -> None:
        """End the children among these runs whose time is up; the record is written when they are gone."""
        due = {(row.pid, row.token): row for row in rows if row.pid in children and self._is_due(row)}
        self._terminated_at = {key: at for key, at in self._terminated_at.items() if key in due}
        for (pid, token), row in due.items():
            assert pid is not None
            since = self._terminated_at.get((pid, token))
            if since is None:
                self._end(pid, row, signal.SIGTERM)
                self._terminated_at[pid, token] = time.monotonic()
            elif time.monotonic() - since >= KILL_AFTER_SECONDS:
                self._end(pid, row, signal.SIGKILL)

    def _is_due(self, row: OwnRun) -> bool:
        forced = row.status is JobStatus.canceling and row.cancel_mode == CancelMode.force
        return forced and (row.cancel_age_seconds or 0.0) >= self._grace_seconds

    def _end(self, pid: int, row: OwnRun, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
            try:
                still = runs.own_runs(self._store, self._incarnation, pid)
                if any(run.token == row.token and run.status is JobStatus.canceling for run in still):
                    _log.warning("job %s is ended by force: %s to process %d", row.job_id, number.name, pid)
                    os.kill(pid, number)
            finally:
                os.kill(pid, signal.SIGCONT)

"""Progress reports: a tight loop costs nothing, since one thread per process stores the newest value of each job."""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from typing import Any

from pydantic_core import to_json

from celery_jobs.records import runs
from celery_jobs.records.errors import DatabaseUnavailable
from celery_jobs.records.runs import Claim
from celery_jobs.records.text import clean
from celery_jobs.tasks import process

STORE_EVERY_SECONDS = 0.1
AGAIN_SECONDS = 1.0
MESSAGE_CHARACTERS = 1_000
_log = logging.getLogger("celery_jobs.progress")


_Report = tuple[Claim, float | None, float | None, str | None]


class ProgressWriter:
    """Stores the newest progress of each running job, off the threads and loops where jobs run."""

    def __init__(self) -> None:
        self._newest: dict[str, _Report] = {}
        self._lock = threading.Lock()
        self._storing = threading.Lock()  # one after the other, so that none overtakes a newer one
        self._some = threading.Event()
        self._pid = 0

    def put(self, claim: Claim, current: Any, total: Any, message: Any) -> None:
        """Replace what is to be stored for this run; takes anything, and is called in tight loops."""
        report = (claim, _number(current), _number(total), _text(message))
        with self._lock:
            self._newest[claim.token] = report
            if self._pid != os.getpid():  # threads do not survive a fork
                self._pid = os.getpid()
                threading.Thread(target=self._run, name="progress", daemon=True).start()
        if not self._some.is_set():
            self._some.set()

    def flush(self, claim: Claim) -> None:
        """Store what is waiting for a run that is about to end; waits for a database that is away, as the end does."""
        with self._lock:
            if claim.token not in self._newest:
                return
        with self._storing:
            with self._lock:
                waiting = self._newest.pop(claim.token, None)
            if waiting is not None:
                self._store(waiting, process.current().settings.outage_patience_seconds)

    def _run(self) -> None:
        pause = threading.Event()
        while True:
            self._some.wait()
            self._some.clear()
            with self._lock:
                newest = list(self._newest.values())
            for report in newest:
                self._store_while_newest(report)
            pause.wait(STORE_EVERY_SECONDS)

    def _store_while_newest(self, report: _Report) -> None:
        """What an outage kept from the record stays, unless something newer came or the run has ended."""
        token = report[0].token
        with self._storing:
            stored = not self._is_newest(token, report) or self._store(report)
            with self._lock:
                if stored and self._newest.get(token) is report:
                    del self._newest[token]
        if not stored:
            time.sleep(AGAIN_SECONDS)
            self._some.set()

    def _is_newest(self, token: str, report: _Report) -> bool:
        with self._lock:
            return self._newest.get(token) is report

    def _store(self, report: _Report, patience_seconds: float = 0.0) -> bool:
        """False when the database is away."""
        claim, current, total, message = report
        values = {"current": current, "total": total, "message": message and clean(message)}
        try:
            here = process.current()
            if runs.progress(here.store, claim, to_json(values).decode(), patience_seconds):
                here.hints.changed(claim.job_id)
        except DatabaseUnavailable:
            return False
        except Exception as error:
            _log.debug("a progress report was dropped: %r", error)
        return True


def _number(value: Any) -> float | None:
    """A number that JSON and every client can hold, or None: a report never fails its job."""
    if value is None:
        return None
    try:
        number = float(value)
    except Exception:
        return None
    if not math.isfinite(number):
        return None
    return int(value) if isinstance(value, int) else number


def _text(value: Any) -> str | None:
    if value is None:
        return None
    try:
        return str(value)[:MESSAGE_CHARACTERS]
    except Exception:
        return None


progress_writer = ProgressWriter()

"""Progress reports: a tight loop costs nothing, since one thread per process stores the newest value of each job."""

from __future__ import annotations

import logging
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
_log = logging.getLogger("celery_jobs.progress")


class ProgressWriter:
    """Stores the newest progress of each running job, off the threads and loops where jobs run."""

    def __init__(self) -> None:
        self._newest: dict[str, tuple[Claim, str]] = {}
        self._lock = threading.Lock()
        self._storing = threading.Lock()  # one after the other, so that none overtakes a newer one
        self._some = threading.Event()
        self._pid = 0

    def put(self, claim: Claim, current: float | None, total: float | None, message: str | None) -> None:
        """Replace what is to be stored for this run."""
        values: dict[str, Any] = {"current": current, "total": total, "message": message and clean(str(message)[:1000])}
        with self._lock:
            self._newest[claim.token] = (claim, to_json(values, inf_nan_mode="null").decode())
            if self._pid != os.getpid():  # threads do not survive a fork
                self._pid = os.getpid()
                threading.Thread(target=self._run, name="progress", daemon=True).start()
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
                self._store(*waiting, process.current().settings.outage_patience_seconds)

    def _run(self) -> None:
        pause = threading.Event()
        while True:
            self._some.wait()
            self._some.clear()
            with self._lock:
                newest = list(self._newest.values())
            for claim, text in newest:
                self._store_while_newest(claim, text)
            pause.wait(STORE_EVERY_SECONDS)

    def _store_while_newest(self, claim: Claim, text: str) -> None:
        """What an outage kept from the record stays, unless something newer came or the run has ended."""
        with self._storing:
            if self._is_newest(claim, text):
                stored = self._store(claim, text)
                with self._lock:
                    if stored and self._newest.get(claim.token) == (claim, text):
                        del self._newest[claim.token]
            else:
                stored = True
        if not stored:
            time.sleep(AGAIN_SECONDS)
            self._some.set()

    def _is_newest(self, claim: Claim, text: str) -> bool:
        with self._lock:
            return self._newest.get(claim.token) == (claim, text)

    def _store(self, claim: Claim, text: str, patience_seconds: float = 0.0) -> bool:
        """False when the database is away."""
        try:
            here = process.current()
            if runs.progress(here.store, claim, text, patience_seconds):
                here.hints.changed(claim.job_id)
        except DatabaseUnavailable:
            return False
        except Exception as error:
            _log.debug("a progress report was dropped: %r", error)
        return True


progress_writer = ProgressWriter()

"""Waiting for the ends of jobs, for Python callers: one look for all that wait in a process, woken by hints.

Without a hint it looks once a second, since hints get lost.
"""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import Future

from celery_jobs.records import reads
from celery_jobs.records.errors import DatabaseUnavailable, JobNotFound, ShuttingDown
from celery_jobs.records.ids import JobId
from celery_jobs.records.states import TERMINAL, JobStatus
from celery_jobs.records.store import Store
from celery_jobs.tasks.hints import Hints

_UNSEEN_SECONDS = 1.0
_AFTER_OUTAGE_SECONDS = 0.2
_log = logging.getLogger("celery_jobs.ends")


class Ends:
    """Who waits for which job; the thread that looks begins with the first."""

    def __init__(self, store: Store, hints: Hints) -> None:
        self._store = store
        self._hints = hints
        self._waiting: dict[JobId, set[Future[JobStatus]]] = {}
        self._hinted: set[JobId] = set()
        self._lock = threading.Lock()
        self._woken = threading.Event()
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()

    def wait(self, job_id: JobId) -> Future[JobStatus]:
        """Resolves with the status in which the job has ended; JobNotFound when there is none (any more)."""
        future: Future[JobStatus] = Future()
        with self._lock:
            if self._ended.is_set():
                raise ShuttingDown
            self._waiting.setdefault(job_id, set()).add(future)
            self._hinted.add(job_id)  # the first look is at once: it may have ended long ago
            if self._thread is None:
                self._hints.listen(self._on_hint)
                self._thread = threading.Thread(target=self._run, name="ends", daemon=True)
                self._thread.start()
        self._woken.set()
        return future

    def leave(self, job_id: JobId, future: Future[JobStatus]) -> None:
        """Somebody waits no longer."""
        with self._lock:
            waiting = self._waiting.get(job_id, set())
            waiting.discard(future)
            if not waiting:
                self._waiting.pop(job_id, None)

    def close(self) -> None:
        """Whoever still waits is told that the service has ended: ShuttingDown."""
        with self._lock:
            self._ended.set()
            left = [future for waiting in self._waiting.values() for future in waiting]
            self._waiting.clear()
        self._woken.set()
        for future in left:
            _settle(future, ShuttingDown())

    def _on_hint(self, ids: set[JobId]) -> None:
        with self._lock:
            watched = ids & self._waiting.keys()
            self._hinted |= watched
        if watched:
            self._woken.set()

    def _run(self) -> None:
        looked = time.monotonic()
        while not self._ended.is_set():
            self._woken.wait(max(looked + _UNSEEN_SECONDS - time.monotonic(), 0.0) if self._waiting else None)
            self._woken.clear()
            # however many hints come: all that wait are looked at once a second, since one of theirs may be lost
            everybody = time.monotonic() - looked >= _UNSEEN_SECONDS
            looked = time.monotonic() if everybody else looked
            with self._lock:
                ids = set(self._waiting) if everybody else self._hinted & self._waiting.keys()
                self._hinted.clear()
            try:
                self._look(ids)
            except DatabaseUnavailable:
                self._ended.wait(_AFTER_OUTAGE_SECONDS)
            except Exception:
                _log.exception("looking at jobs that are waited for failed; tried again in a second")
                self._ended.wait(_UNSEEN_SECONDS)

    def _look(self, ids: set[JobId]) -> None:
        found = self._store.read(reads.statuses, ids) if ids else {}
        for job_id in ids:
            status = found.get(job_id)
            if status is not None and status not in TERMINAL:
                continue
            with self._lock:
                waiting = self._waiting.pop(job_id, set())
            for future in waiting:
                _settle(future, JobNotFound(job_id) if status is None else status)


def _settle(future: Future[JobStatus], outcome: JobStatus | Exception) -> None:
    if not future.set_running_or_notify_cancel():
        return  # whoever waited has given up
    if isinstance(outcome, Exception):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)

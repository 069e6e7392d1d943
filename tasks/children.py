"""A prefork worker's look at its children: a run whose process is gone is closed within seconds, with the cause.

Here alone: what the pool tells the main loop (a time limit, a lost message) is remembered until the look, so that the
loop never waits for a database and no run is closed while its process lives.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
from collections.abc import Collection
from typing import Any

from celery_jobs.records import runs, workers
from celery_jobs.records.ids import JobId
from celery_jobs.records.runs import OwnRun
from celery_jobs.records.store import Store
from celery_jobs.tasks import metrics
from celery_jobs.tasks.dispatch import Dispatcher
from celery_jobs.tasks.duty import Duty
from celery_jobs.tasks.force import ForcedEnds
from celery_jobs.tasks.process import Process
from celery_jobs.tasks.request import exceeded

LOOK_SECONDS = 1.0
_ENDED = os.WEXITED | os.WNOHANG | os.WNOWAIT  # and leave it to the pool


class Children:
    """The processes of a pool that forks; empty for a pool of threads."""

    def __init__(self, worker: Any, store: Store, here: Process, dispatcher: Dispatcher) -> None:
        self._worker = worker  # its pool comes to be later
        self._store = store
        self._here = here
        self._dispatcher = dispatcher
        self._missing: set[int] = set()
        self._known: dict[int, Any] = {}
        self._unclaimed: queue.SimpleQueue[JobId] = queue.SimpleQueue()
        self._forced_ends = ForcedEnds(store, here.incarnation, here.settings.cancel_grace_seconds)
        self._duty = Duty("children", self._look, LOOK_SECONDS)

    @property
    def forks(self) -> bool:
        """True where the pool runs its jobs in processes of their own."""
        return "prefork" in type(self._worker.pool).__module__

    def start(self) -> None:
        """Begin to look."""
        if self.forks:
            self._know_from_birth(self._worker.pool._pool)
            self._duty.start()

    def _know_from_birth(self, pool: Any) -> None:
        """A child may come and go between two looks, and is asked then how it ended."""
        make = pool._create_worker_process

        def made(index: int) -> Any:
            child = make(index)
            self._known[child.pid] = child
            return child

        pool._create_worker_process = made

    @property
    def duties(self) -> tuple[Duty, ...]:
        """What runs in the background."""
        return (self._duty,)

    def processes(self) -> list[Any]:
        """The children that the pool has now."""
        pool = getattr(self._worker.pool, "_pool", None)
        return list(getattr(pool, "_pool", None) or ()) if self.forks else []

    def signal(self, number: signal.Signals) -> None:
        """One signal to each."""
        for child in self.processes():
            kill(child.pid, number)

    def lost_message(self, job_id: JobId) -> None:
        """A child died with this job's message; where it had not claimed the job, the job shall wait again."""
        self._unclaimed.put(job_id)
        self._duty.wake()

    def _look(self) -> None:
        """End the runs of children that are gone for two looks (the first may race with their own last report)."""
        long_known = set(self._known)
        rows = runs.own_runs(self._store, self._here.incarnation)
        children = {child.pid: child for child in self.processes()}
        self._known.update(children)
        self._forced_ends.look(rows, children)
        gone = {row.pid for row in rows if row.pid is not None and is_gone(row.pid)}
        lost, self._missing = gone & self._missing, gone
        for pid in lost:
            self._close(pid, [row for row in rows if row.pid == pid])
        self._forget(children.keys() | gone | (self._known.keys() - long_known))
        self._return_unclaimed()

    def _return_unclaimed(self) -> None:
        while not self._unclaimed.empty():
            job_id = self._unclaimed.get()
            try:
                runs.undispatch(self._store, job_id)
            except Exception:
                self._unclaimed.put(job_id)
                raise

    def _close(self, pid: int, rows: Collection[OwnRun]) -> None:
        closed: list[JobId] = []
        if (told := exceeded.get(pid)) is not None:
            job_id, reason = told
            for row in rows:
                if row.job_id == job_id and self._store.write(workers.close_run, job_id, row.token or "", reason):
                    closed.append(job_id)
        closed += self._store.write(workers.close_lost_pids, self._here.incarnation, [pid], self._how_it_ended(pid))
        self._here.hints.changed(*closed)
        metrics.closed(self._store, closed)
        self._dispatcher.wake()

    def _how_it_ended(self, pid: int) -> str:
        return "the process that ran the job ended unexpectedly" + _cause(pid, self._known.get(pid))

    def _forget(self, relevant: Collection[int]) -> None:
        for known in (self._known, exceeded):
            for pid in known.keys() - relevant:
                known.pop(pid, None)


def _cause(pid: int, child: Any) -> str:
    """How a child ended: as the system still knows it, or as the pool has seen it."""
    code: int | None = getattr(getattr(child, "_popen", None), "returncode", None)
    with contextlib.suppress(ChildProcessError):
        if ended := os.waitid(os.P_PID, pid, _ENDED):
            code = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
    if code is None:
        return ""
    if code >= 0:
        return f" (exit code {code})"
    names = {number.value: number.name for number in signal.Signals}
    return f" (signal {-code}, {names.get(-code, 'unknown')})"


def is_gone(pid: int) -> bool:
    """True when this child has ended, whether or not the pool has noticed."""
    try:
        return os.waitid(os.P_PID, pid, _ENDED) is not None
    except ChildProcessError:
        return True


def kill(pid: int, number: signal.Signals) -> None:
    """A signal to a child that may have ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)

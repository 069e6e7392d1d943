"""A remote task as the server shows it, and one that this worker has claimed."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final, Protocol
from weakref import WeakValueDictionary

from pydantic import BaseModel, ConfigDict, PrivateAttr

log = logging.getLogger("celery_jobs.client")

ENDED: Final = frozenset({"completed", "failed", "cancelled"})


class RemoteTask(BaseModel):
    """One execution of a registered callable; `job_name` is `<room>:<category>:<name>`."""

    model_config = ConfigDict(extra="ignore")  # a newer server may say more

    id: str
    job_name: str
    room_id: str
    payload: dict[str, Any]
    created_at: datetime
    status: str = "pending"  # pending, claimed, running, completed, failed, cancelled
    started_at: datetime | None = None
    completed_at: datetime | None = None
    error: str | None = None
    worker_id: str | None = None
    created_by_id: str | None = None
    result: Any = None
    queue_position: int | None = None

    @property
    def ended(self) -> bool:
        """True when it is completed, failed or cancelled, which is for good."""
        return self.status in ENDED


class Runs(Protocol):
    """Who knows the registered classes and how to report."""

    def run(self, task: ClaimedTask, args: tuple[Any, ...]) -> None:
        """Run it and report; raises nothing but what ends the program."""
        ...


class ClaimedTask(RemoteTask):
    """A task that this worker holds: run it, or report by `start`, `complete` and `fail` of the JobManager."""

    status: str = "claimed"

    _runs: Runs | None = PrivateAttr(None)
    _cancel_requested: bool = PrivateAttr(False)

    def run(self, *args: Any) -> None:
        """Report running, call `run(*args)` of the registered class with the payload, report completed or failed.

        Does not raise; KeyboardInterrupt and SystemExit pass when the task is reported failed.
        """
        if self._runs is None:
            raise RuntimeError("this task does not come from a JobManager, which knows the class to run")
        self._runs.run(self, args)

    @property
    def cancel_requested(self) -> bool:
        """True once the server said that it was cancelled or taken away: nobody waits for its end any more."""
        return self._cancel_requested

    def request_cancel(self) -> None:
        """Make `cancel_requested` true."""
        self._cancel_requested = True

    def belongs_to(self, runs: Runs) -> None:
        """From now on `run` works."""
        self._runs = runs


class InHand:
    """The claimed tasks that somebody in this process still holds."""

    def __init__(self) -> None:
        self._tasks: WeakValueDictionary[str, ClaimedTask] = WeakValueDictionary()

    def take(self, task: ClaimedTask) -> None:
        """A task was claimed."""
        self._tasks[task.id.lower()] = task

    def drop(self, task: ClaimedTask) -> None:
        """It has ended."""
        self._tasks.pop(task.id.lower(), None)

    def cancelled(self, ids: Iterable[str]) -> None:
        """The server says that these were cancelled."""
        for each in ids:
            task = self._tasks.get(each.lower())
            if task is not None and not task.cancel_requested:
                log.info("task %s of %s was cancelled", task.id, task.job_name)
                task.request_cancel()

    def worker_lost(self, worker: str) -> None:
        """The server does not know the worker any more, so what it held is no longer its own."""
        for task in list(self._tasks.values()):
            if task.worker_id == worker:
                task.request_cancel()

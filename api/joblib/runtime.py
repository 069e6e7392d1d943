"""What the second API keeps in a process: its settings, who waits, what it remembers, and since when it is in touch."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Collection, Iterable, Sequence
from functools import cached_property
from typing import Any, Final

from celery_jobs.api.auth import Keys
from celery_jobs.api.joblib.access import Records
from celery_jobs.api.joblib.waiting import Waiter, WaitingRoom
from celery_jobs.api.payloads.checker import Checker
from celery_jobs.api.plugged.service import PluggedService
from celery_jobs.records.errors import NotSupported
from celery_jobs.records.ids import JobId
from celery_jobs.records.remote import claims, tasks, workers
from celery_jobs.records.remote.names import FullName
from celery_jobs.records.remote.registering import Registered
from celery_jobs.records.remote.settings import JobLibSettings, load_joblib_settings
from celery_jobs.records.settings import load_settings
from celery_jobs.tasks.contact import Contact

PULSES_PER_TIMEOUT: Final = 10
_MOST_REMEMBERED: Final = 256
_WORKER: Final = "worker:"  # before the id of a worker that waits, beside the registrations that it serves


def worker_key(worker_id: str) -> str:
    """The key by which a waiting worker is called."""
    return _WORKER + worker_id


class Remembered:
    """The registered jobs that were last submitted; a registration keeps its schema, so only its removal matters.

    That is noticed by the write of a submit, which finds that the registration is gone.
    """

    def __init__(self) -> None:
        self._known: dict[FullName, Registered] = {}

    def get(self, job: FullName) -> Registered | None:
        """As it was when it was last looked up."""
        return self._known.get(job)

    def remember(self, registered: Registered) -> None:
        """The one that was remembered first goes when there are many."""
        while len(self._known) >= _MOST_REMEMBERED:
            del self._known[next(iter(self._known))]
        self._known[registered.full_name] = registered

    def forget(self, job: FullName) -> None:
        """Look it up next time."""
        self._known.pop(job, None)


class Runtime:
    """One for each app and process, of one event loop."""

    def __init__(self, settings: JobLibSettings) -> None:
        self.settings = settings
        self.vacancies = WaitingRoom(self._look_for_work)
        self.ends = WaitingRoom(_look_for_ends)
        self.contact = Contact(settings.worker_timeout_seconds / 4)
        self.reads: dict[JobId, asyncio.Future[tasks.RemoteTask]] = {}  # of tasks that were waited for, under way
        self.registered = Remembered()
        self.checker = Checker()
        self.swept_at = float("-inf")
        self._renewed_at = 0.0
        self.loop = asyncio.get_running_loop()

    @cached_property
    def keys(self) -> Keys | None:
        """The API keys of a host app, for one that does not say who calls; None without any. SettingsError."""
        found = load_settings(DATABASE_URL="sqlite:///unused").api_keys  # the host's own may be of any kind
        return Keys(found) if found else None

    def changed(self, ids: Collection[str]) -> None:
        """Tasks were written, registered jobs have something to claim, or workers something to hear."""
        for each in ids:
            self.ends.call(each)
            if each.startswith(_WORKER):
                self.vacancies.call(each)
            else:
                self.vacancies.call_one(each)

    def hinted(self, ids: Collection[str]) -> None:
        """The same, from any thread."""
        heard = [each for each in ids if self.vacancies.expects(each) or self.ends.expects(each)]
        if heard:
            with contextlib.suppress(RuntimeError):  # the loop has closed: nobody waits any more
                self.loop.call_soon_threadsafe(self.changed, heard)

    def close(self) -> None:
        """The service stops: nobody waits any longer."""
        self.vacancies.close()
        self.ends.close()
        self.checker.close()

    def tick(self) -> None:
        """Note from now on that this process runs; for a host app, where nothing else does."""
        self.contact.sign()
        self.loop.call_later(self.settings.worker_timeout_seconds / PULSES_PER_TIMEOUT, self.tick)

    async def _look_for_work(self, records: Records, waiters: Sequence[Waiter]) -> Iterable[str]:
        waiting = [key.removeprefix(_WORKER) for each in waiters for key in each.keys if key.startswith(_WORKER)]
        lease = self.settings.worker_timeout_seconds
        if time.monotonic() - self._renewed_at > lease / 4:
            await records.write(workers.renew_many, waiting, lease)
            self._renewed_at = time.monotonic()
        return [worker_key(each) for each in await records.read(claims.to_call, waiting)]


async def _look_for_ends(records: Records, waiters: Sequence[Waiter]) -> Iterable[str]:
    wanted = {JobId(key) for each in waiters for key in each.keys}
    return await records.read(tasks.ended, list(wanted))


def runtime_of(app: Any) -> Runtime:
    """The app's; one that our lifespan did not start begins with its first request. NotSupported."""
    state = app.state
    if isinstance(getattr(state, "service", None), PluggedService):
        raise NotSupported("Remote work")
    found: Runtime | None = getattr(state, "joblib", None)
    if found is None or found.loop is not asyncio.get_running_loop():
        found = state.joblib = Runtime(load_joblib_settings())
        found.tick()
    return found

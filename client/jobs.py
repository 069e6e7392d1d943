"""`JobManager`: the classes that a worker offers, and the tasks that it gets for them."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self, TypeVar, overload

from pydantic import BaseModel

from celery_jobs.client.api import ApiManager, HttpApi
from celery_jobs.client.claims import WorkerClaims
from celery_jobs.client.heartbeat import DEFAULT_INTERVAL_SECONDS, Heart
from celery_jobs.client.offers import GLOBAL, offer_of, payload_of
from celery_jobs.client.reports import Reports
from celery_jobs.client.retry import CALL_PATIENCE_SECONDS, Hurry, patiently
from celery_jobs.client.run import TaskRuns
from celery_jobs.client.serve import Handler, Serving
from celery_jobs.client.stream import TaskStream
from celery_jobs.client.submitted import SubmittedTask
from celery_jobs.client.task import ClaimedTask, InHand
from celery_jobs.client.wire import Wire
from celery_jobs.client.worker import Worker

M = TypeVar("M", bound=BaseModel)
log = logging.getLogger("celery_jobs.client")


class JobManager(Mapping[str, type[BaseModel]]):
    """A mapping of the full names of registered jobs (`<room>:<category>:<name>`) to their classes.

    Takes a worker id of its own when it first needs one. Threads may share it. Calls are repeated for 10 s while the
    server is away, reports for 10 minutes, streams for as long as it takes; everything else that goes wrong is raised
    as a ClientError.
    """

    def __init__(self, api: ApiManager | str, *, api_key: str | None = None) -> None:
        """Of a server, by its URL and an API key, or by an ApiManager of the caller's own."""
        if not isinstance(api, str) and api_key is not None:
            raise TypeError("an ApiManager gives the headers by itself: api_key goes with a URL only")
        self._own_api = HttpApi(api, api_key=api_key) if isinstance(api, str) else None
        self.api: ApiManager = self._own_api or api  # pyright: ignore[reportAttributeAccessIssue]
        self._wire = Wire(self.api)
        self._hurry = Hurry()
        self._in_hand = InHand()
        self._worker = Worker(self._wire, self._in_hand)
        self._reports = Reports(self._wire, self._in_hand, self._hurry)
        self._runs = TaskRuns(self._worker.classes, self._reports)
        self._claims = WorkerClaims(self._wire, self._worker, self._in_hand, self._runs)
        self._heart = Heart(self._wire, self._worker, self._in_hand)
        self._serving: list[Serving] = []

    # --- a mapping

    def __getitem__(self, key: str) -> type[BaseModel]:
        return self._worker.classes[key]

    def __len__(self) -> int:
        return len(self._worker.classes)

    def __iter__(self) -> Iterator[str]:
        return iter(dict(self._worker.classes))

    def __eq__(self, other: object) -> bool:
        return self is other  # two workers stay two, whatever they offer

    def __hash__(self) -> int:
        return id(self)

    # --- offering jobs

    @overload
    def register(self, task_class: type[M], *, room: str | None = None) -> type[M]: ...

    @overload
    def register(self, task_class: None = None, *, room: str | None = None) -> Callable[[type[M]], type[M]]: ...

    def register(
        self, task_class: type[M] | None = None, *, room: str | None = None
    ) -> type[M] | Callable[[type[M]], type[M]]:
        """Register a class, as a call or as a decorator with or without `room`; no room means all (`@global`).

        SchemaConflict if the job is registered with another schema.
        """

        def registered(cls: type[M]) -> type[M]:
            offer = offer_of(cls, room)
            self._patiently(lambda: self._worker.add(offer, cls))
            return cls

        return registered if task_class is None else registered(task_class)

    @property
    def worker_id(self) -> str:
        """The id of this worker; taken now, if it had none."""
        return self._patiently(self._worker.identify)

    # --- getting tasks

    def listen(self, interval: float = 2.0) -> TaskStream:
        """The tasks of the registered jobs as they come; every `interval` seconds from a server that cannot wait."""
        return TaskStream(self.api, polling_interval=interval, claims=self._claims)

    def heartbeat(self) -> None:
        """Say that the worker lives, and hear which tasks were cancelled (`ClaimedTask.cancel_requested`).

        To be called during long work where `serve` does not do it.
        """
        self._heart.beat()

    def serve(self, handler: Handler | None = None, *, heartbeat_interval: float = DEFAULT_INTERVAL_SECONDS) -> None:
        """Run tasks, by `handler(task)` or `task.run()`, with a heartbeat beside it, until SIGINT, SIGTERM or `stop()`.

        Then the running task finishes and the worker is taken away; a second signal ends it at once. What a handler
        raises fails its task; what it does not report stays as it is.
        """
        if not self:
            log.warning("no class is registered, so no task will come")
        serving = Serving(self.listen(), self._runs, self._hurry)
        self._serving.append(serving)
        try:
            with serving.obeying_signals():
                try:
                    with self._heart.beating(heartbeat_interval):
                        serving.run(handler)
                finally:
                    self._served(serving)
        finally:
            self._hurry.end()

    def _served(self, serving: Serving) -> None:
        self._serving.remove(serving)
        if not self._serving:  # otherwise another thread serves as the same worker
            self._worker.leave()

    def stop(self) -> None:
        """End `serve`, as the first signal does; from any thread."""
        for serving in list(self._serving):
            serving.stop()

    # --- reporting, for handlers of one's own

    def start(self, task: ClaimedTask) -> None:
        """Report running. InvalidTaskTransition, TaskNotFound or Forbidden if it is no longer this worker's."""
        self._reports.start(task)

    def complete(self, task: ClaimedTask, result: Any = None) -> None:
        """Report completed; ResultNotJson for a result that JSON cannot hold. Otherwise as `start`."""
        self._reports.complete(task, result)

    def fail(self, task: ClaimedTask, error: str | BaseException) -> None:
        """Report failed, with the reason. Otherwise as `start`."""
        self._reports.fail(task, error)

    # --- submitting

    def submit(
        self, instance: BaseModel, *, room: str, job_room: str = GLOBAL, idempotency_key: str | None = None
    ) -> SubmittedTask:
        """Submit a task for the job of the instance's class, from a room; the job is one of `job_room`.

        Safe to repeat: the same key gives the same task. JobNotFound where nobody registered it, PayloadInvalid where
        the payload does not fit.
        """
        name, payload = offer_of(type(instance), job_room).full_name, payload_of(instance)
        key = idempotency_key or uuid.uuid4().hex
        body = patiently(
            lambda left: self._wire.submit(room, name, payload, key, max(left.left_seconds, 1.0)),
            CALL_PATIENCE_SECONDS,
            self._hurry,
        )
        return SubmittedTask.of(body, self._wire)

    def task(self, task_id: str) -> SubmittedTask:
        """A task by its id; TaskNotFound if there is none."""
        return SubmittedTask.of(self._patiently(lambda: self._wire.task(task_id)).body, self._wire)

    # --- the end

    def close(self) -> None:
        """Stop, take the worker away (claimed tasks go back, running ones fail), close connections of its own."""
        self.stop()
        self._worker.leave()
        if self._own_api is not None:
            self._own_api.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _patiently(self, call: Callable[[], Any]) -> Any:
        return patiently(lambda _: call(), CALL_PATIENCE_SECONDS, self._hurry)

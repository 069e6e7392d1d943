"""Hints that a job's record changed, so that streams and waits read at once; losing one loses nothing.

Inside a process they are calls; between processes they travel by Redis pub/sub where the broker is Redis, by
PostgreSQL NOTIFY otherwise. With neither (SQLite and another broker) the readers' own interval finds every change.
"""

from __future__ import annotations

import contextlib
import json
import logging
import queue
import threading
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from celery_jobs.records.engine import database_url
from celery_jobs.records.ids import JobId
from celery_jobs.records.outage import backoff_seconds
from celery_jobs.records.settings import Settings

CHANNEL = "celery_jobs_changes"
_MOST_WAITING = 10_000  # while the channel is away; what is dropped is found by the readers' own interval
_PATIENCE_SECONDS = 0.01  # what is not urgent waits for the dispatch of the same submit, and gathers
_SILENCE_SECONDS = 3.0  # no answer for so long is none
_QUIET_SECONDS = 10.0  # no hint for so long: is the connection still there?
_MOST_IDS = 200  # a NOTIFY carries less than 8,000 bytes
_log = logging.getLogger("celery_jobs.hints")

Callback = Callable[[set[JobId]], None]


class _Wire(Protocol):
    """A channel between processes; both calls may raise anything when the server is away."""

    def send(self, text: str) -> None: ...
    def receive(self) -> Iterable[str]: ...
    def close(self) -> None: ...


class Hints:
    """Announces changed jobs and tells callbacks; sending and receiving happen in threads of their own."""

    def __init__(self, settings: Settings) -> None:
        self._make_wire = _wire_of(settings)
        self._callbacks: list[Callback] = []
        self._outbox: queue.SimpleQueue[tuple[JobId, bool] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads: dict[str, threading.Thread] = {}
        self._closed = threading.Event()
        self._listening: _Wire | None = None

    def changed(self, *job_ids: JobId) -> None:
        """These jobs' records were written; call after the commit."""
        if job_ids:
            self._tell(set(job_ids))
            self._put(job_ids, urgent=True)

    def appeared(self, job_id: JobId) -> None:
        """This job was submitted, which nobody waits for but who follows all jobs; other processes hear it last."""
        self._tell({job_id})
        self._put((job_id,), urgent=False)

    def _put(self, job_ids: Iterable[JobId], *, urgent: bool) -> None:
        if self._make_wire is not None:
            for job_id in job_ids if self._outbox.qsize() < _MOST_WAITING else ():
                self._outbox.put((job_id, urgent))
            self._thread("hints-send", self._send)

    def listen(self, callback: Callback) -> None:
        """Call `callback` with the ids that changed, from any thread, for changes of this and other processes."""
        self._callbacks.append(callback)
        if self._make_wire is not None:
            self._thread("hints-receive", self._receive)

    def close(self) -> None:
        """End the threads."""
        self._closed.set()
        self._callbacks.clear()
        self._outbox.put(None)
        if self._listening is not None:
            self._listening.close()

    def _tell(self, ids: set[JobId]) -> None:
        for callback in self._callbacks:
            callback(ids)

    def _thread(self, name: str, target: Callable[[], None]) -> None:
        if name not in self._threads:
            with self._lock:
                if name not in self._threads:
                    self._threads[name] = threading.Thread(target=target, name=name, daemon=True)
                    self._threads[name].start()

    def _send(self) -> None:
        wire: _Wire | None = None
        while (first := self._outbox.get()) is not None:
            job_id, urgent = first
            if not urgent:
                self._closed.wait(_PATIENCE_SECONDS)
            ids = {job_id}
            while len(ids) < _MOST_IDS and not self._outbox.empty():
                following = self._outbox.get()
                if following is None:
                    return
                ids.add(following[0])
            try:
                wire = wire or _made(self._make_wire)
                wire.send(json.dumps(sorted(ids)))
            except Exception as error:
                _log.debug("a hint was lost: %r", error)
                wire = _let_go(wire)
                self._drop_waiting()

    def _drop_waiting(self) -> None:
        """What gathered while a silent server was waited for is old; the readers have found it by themselves."""
        for _ in range(self._outbox.qsize()):
            if self._outbox.get() is None:
                self._outbox.put(None)  # the end

    def _receive(self) -> None:
        pauses = backoff_seconds()
        while not self._closed.is_set():
            try:
                self._listening = _made(self._make_wire)
                for text in self._listening.receive():
                    pauses = backoff_seconds()
                    self._tell({JobId(job_id) for job_id in json.loads(text)})
            except Exception as error:
                _log.debug("not listening for hints at the moment: %r", error)
            self._listening = _let_go(self._listening)
            self._closed.wait(next(pauses))


def _made(make: Callable[[], _Wire] | None) -> _Wire:
    assert make is not None
    return make()


def _let_go(wire: _Wire | None) -> None:
    if wire is not None:
        with contextlib.suppress(Exception):
            wire.close()


def _wire_of(settings: Settings) -> Callable[[], _Wire] | None:
    broker = settings.broker_url
    if broker is None:
        return None
    if broker.startswith(("redis://", "rediss://")):
        return lambda: _RedisWire(broker)
    if database_url(settings.database_url).get_backend_name() == "postgresql":
        return lambda: _PostgresWire(settings.database_url)
    return None


class _RedisWire:
    def __init__(self, url: str) -> None:
        from redis import Redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        # no retries of its own: a hint that is late is worth nothing
        once = Retry(NoBackoff(), 0)
        self._client: Any = Redis.from_url(
            url, socket_timeout=_SILENCE_SECONDS, socket_connect_timeout=_SILENCE_SECONDS, retry=once
        )

    def send(self, text: str) -> None:
        self._client.publish(CHANNEL, text)

    def receive(self) -> Iterable[str]:
        pubsub = self._client.pubsub(ignore_subscribe_messages=True)
        pubsub.subscribe(CHANNEL)
        asked = False
        while True:
            message = pubsub.get_message(timeout=_SILENCE_SECONDS if asked else _QUIET_SECONDS)
            if message is not None:
                asked = False
                if message["type"] == "message":
                    yield message["data"].decode()
            elif asked:
                raise TimeoutError("the server does not answer")  # a connection that died silently is found here
            else:
                pubsub.ping()
                asked = True

    def close(self) -> None:
        self._client.close()


class _PostgresWire:
    def __init__(self, url: str) -> None:
        import psycopg

        from celery_jobs.records.postgresql import connection_arguments

        address = database_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
        self._connection = psycopg.connect(address, autocommit=True, **connection_arguments())

    def send(self, text: str) -> None:
        self._connection.execute("SELECT pg_notify(%s, %s)", (CHANNEL, text))

    def receive(self) -> Iterable[str]:
        self._connection.execute(f"LISTEN {CHANNEL}")
        while True:
            for notice in self._connection.notifies(timeout=_QUIET_SECONDS):
                yield notice.payload
            self._connection.execute("SELECT 1")  # a connection that died silently is found here

    def close(self) -> None:
        self._connection.close()

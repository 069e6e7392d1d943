"""The metrics of this process: what is counted where it happens, and the text that a scrape gets (contract, section 3).

Nothing is counted, and prometheus_client is not imported, before `enable`. With PROMETHEUS_MULTIPROC_DIR in the
environment the numbers live in files of that folder, and a scrape of any process adds up all that count into it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import tempfile
import threading
from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from celery_jobs.records import census
from celery_jobs.records.ids import JobId
from celery_jobs.records.states import JobStatus
from celery_jobs.records.store import Store
from celery_jobs.tasks.census import KEPT_FOR_ITS_TIME, Numbers

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

FOLDER: Final = "PROMETHEUS_MULTIPROC_DIR"  # prometheus_client's own name for it
RETRIED: Final = "retried"
AT_ONCE: Final = "at_once"

# jobs take from milliseconds to an hour
_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)
_log = logging.getLogger("celery_jobs.metrics")


class _Metrics:
    """The objects of prometheus_client; labels are names of tasks and queues, and a few fixed words."""

    def __init__(self) -> None:
        from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

        self.registry = registry = CollectorRegistry()

        def seconds(name: str, told: str, label: str, *labels: str) -> Histogram:
            return Histogram(name, told, [label, *labels], buckets=_BUCKETS, registry=registry)

        self.submitted = Counter("jobs_submitted", _SUBMITTED, ["task", "queue"], registry=registry)
        self.duration = seconds("job_duration_seconds", _DURATION, "task", "status")
        self.queue_wait = seconds("job_queue_wait_seconds", _QUEUE_WAIT, "queue")
        self.cancel = seconds("job_cancel_seconds", _CANCEL, "mode")
        self._streams: Gauge | None = None

    @property
    def streams(self) -> Any:
        """Made when it is first set: a worker has no streams to tell of."""
        if self._streams is None:
            from prometheus_client import Gauge

            self._streams = Gauge("sse_streams", _STREAMS, multiprocess_mode="livesum", registry=self.registry)
        return self._streams


_SUBMITTED: Final = "Jobs recorded by submits over HTTP or from Python; a replayed idempotency key is none."
_DURATION: Final = "From the claim of one run to its recorded end; status retried: the job waits for another run."
_QUEUE_WAIT: Final = "From the submit, or from run_at or the requeue where that is later, to the claim."
_CANCEL: Final = "From the request to canceled; mode at_once: the job was not running."
_STREAMS: Final = "Open Server-Sent Events streams of jobs."
_JOBS: Final = f"Jobs listed, by status and queue. A count stands for {KEPT_FOR_ITS_TIME} times as long as it took."
_WORKERS: Final = "Live workers."
_DATABASE_UP: Final = "1 when the database answered this scrape; without it there are neither jobs nor workers."

_metrics: _Metrics | None = None
# one for all, held over a fork: a child that inherits a lock in use would wait for ever
_lock = threading.Lock()


def enable() -> None:
    """From now on this process counts; again is fine."""
    global _metrics
    if _metrics is None:
        folder = os.environ.get(FOLDER)
        if folder:
            Path(folder).mkdir(parents=True, exist_ok=True)
        else:
            os.environ.pop(FOLDER, None)  # empty is not set, which prometheus_client takes otherwise
        _metrics = _Metrics()
        os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


def shared() -> bool:
    """True where several processes count together."""
    return FOLDER in os.environ


# --- what happened


REMOTE = "remote"  # all jobs of remote workers together: anybody may name one


def submitted(task: str, queue: str) -> None:
    """A job was recorded for the first time."""
    if _metrics is not None:
        with _lock:
            _metrics.submitted.labels(task, queue).inc()


def claimed(queue: str, waited_seconds: float) -> None:
    """A run has begun, so long after it could have."""
    if _metrics is not None:
        with _lock:
            _metrics.queue_wait.labels(queue).observe(max(0.0, waited_seconds))


def ended(task: str, status: JobStatus, seconds: float) -> None:
    """A run has ended in its own process, and its record says so."""
    if _metrics is not None:
        with _lock:
            _metrics.duration.labels(task, RETRIED if status is JobStatus.pending else str(status)).observe(seconds)


def canceled(mode: str | None, seconds: float) -> None:
    """A job that was asked to cancel is canceled; `mode` as in its record, or AT_ONCE where it was not running."""
    if _metrics is not None:
        with _lock:
            _metrics.cancel.labels(mode or AT_ONCE).observe(max(0.0, seconds))


def closed(store: Store, ids: Sequence[JobId]) -> None:
    """These runs were ended from outside, since their process no longer could; some may have been asked to cancel."""
    if _metrics is None or not ids:
        return
    try:
        for mode, seconds in store.read(census.cancel_times, ids):
            canceled(mode, seconds)
    except Exception as error:
        _log.debug("the cancel times of %d jobs are not counted: %r", len(ids), error)


def streams(number: int) -> None:
    """So many streams are open in this process."""
    if _metrics is not None:
        with _lock:
            _metrics.streams.set(number)


# --- what a scrape gets


def text(accept: str, more: Iterable[Metric]) -> tuple[bytes, str]:
    """What was counted, and `more`, in the format that the client prefers; and its media type."""
    from prometheus_client.exposition import choose_encoder

    encoder, media_type = choose_encoder(accept)
    return encoder(_Scrape(more)), media_type


class _Scrape:
    """What prometheus_client writes down."""

    def __init__(self, more: Iterable[Metric]) -> None:
        self._more = more

    def collect(self) -> Iterator[Metric]:
        """All of it."""
        yield from counted()
        yield from self._more


def counted() -> Iterator[Metric]:
    """What was counted here, or by all processes of the folder."""
    from prometheus_client.multiprocess import MultiProcessCollector

    if shared():
        yield from MultiProcessCollector(None).collect()
    elif _metrics is not None:
        for metric in _metrics.registry.collect():
            # as in the folder's files, which hold no times of creation
            metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
            yield metric


def from_sql(numbers: Numbers | None) -> Iterator[Metric]:
    """The gauges of what SQL says; None when the database does not answer."""
    from prometheus_client.core import GaugeMetricFamily

    yield GaugeMetricFamily("database_up", _DATABASE_UP, value=float(numbers is not None))
    if numbers is None:
        return
    jobs = GaugeMetricFamily("jobs", _JOBS, labels=["status", "queue"])
    for (queue, status), number in sorted(numbers.jobs.items()):
        jobs.add_metric([str(status), queue], number)
    yield jobs
    yield GaugeMetricFamily("workers", _WORKERS, value=numbers.workers)


# --- the folder that processes share


@contextlib.contextmanager
def shared_folder() -> Generator[Path]:
    """A new folder for processes that count together, removed at the end by whoever made it."""
    folder, owner = Path(tempfile.mkdtemp(prefix="celery-jobs-metrics-")), os.getpid()
    try:
        yield folder
    finally:
        if os.getpid() == owner:  # and not by a forked child
            shutil.rmtree(folder, ignore_errors=True)


def forget_streams_of_the_dead(folder: Path, living: Collection[int | None]) -> None:
    """Take out what processes that have gone said of the present; what they counted stays."""
    from prometheus_client.multiprocess import mark_process_dead

    for file in folder.glob("gauge_live*_*.db"):
        pid = file.stem.rpartition("_")[2]
        if pid.isdigit() and int(pid) not in living:
            mark_process_dead(int(pid), str(folder))

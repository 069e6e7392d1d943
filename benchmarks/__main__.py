"""`make bench`, or `.venv/bin/python -m benchmarks [--quick] [--only submits --only starts …]`."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from enum import StrEnum
from types import FrameType
from typing import Annotated

import typer

from benchmarks import plot
from benchmarks.figures import Measured
from benchmarks.parts import (
    cancels,
    lists,
    memory,
    overhead,
    remote,
    starts,
    statements,
    streams,
    submits,
    throughput,
    waits,
)
from benchmarks.plan import FULL, QUICK, Plan
from benchmarks.report import Report
from benchmarks.stand.servers import Bench

NOTES = [
    "Peers, in the same run on the same Redis: uvicorn with uvloop and httptools, one process, plain `def` endpoints "
    "(in FastAPI's threads, as people write them) around `delay()` and AsyncResult; Celery with its defaults.",
    "Ours is durable when it answers (fsync of PostgreSQL and SQLite is on); the peers' Redis keeps nothing on disk.",
    "The embedded service has no peer without a server: it is set against bare Celery on Redis.",
    "cpu ms: processor time of the server side per request or job, the smallest round; it hardly sees other load. "
    "Of submits while a worker runs it is the HTTP process alone.",
]


class Part(StrEnum):
    """What can be measured by itself."""

    submits = "submits"
    starts = "starts"
    throughput = "throughput"
    statements = "statements"
    cancels = "cancels"
    overhead = "overhead"
    streams = "streams"
    waits = "waits"
    lists = "lists"
    memory = "memory"
    remote = "remote"


MEASURES: dict[Part, Callable[[Bench, Plan], Measured]] = {
    Part.submits: submits.measure,
    Part.starts: starts.measure,
    Part.throughput: throughput.measure,
    Part.statements: statements.measure,
    Part.cancels: cancels.measure,
    Part.overhead: overhead.measure,
    Part.streams: streams.measure,
    Part.waits: waits.measure,
    Part.lists: lists.measure,
    Part.memory: memory.measure,
    Part.remote: remote.measure,
}


def run(
    quick: Annotated[bool, typer.Option("--quick", help="A few minutes: one round, small sizes.")] = False,
    only: Annotated[list[Part] | None, typer.Option(help="Only this; may be repeated.")] = None,
) -> None:
    """Measure the service beside bare Celery and bare FastAPI, on private servers."""
    load = os.getloadavg()[0]
    report = Report(quick, load, list(NOTES))
    if load > (os.cpu_count() or 1) / 2:
        report.notes.append(f"The machine was busy with other things (load {load:.1f}): trust ratios and cpu ms only.")
    signal.signal(signal.SIGTERM, _exit)
    try:
        with Bench() as bench:
            for part in only or list(Part):
                began = time.monotonic()
                print(f"{part} …", end=" ", file=sys.stderr, flush=True)
                report.add(*MEASURES[part](bench, QUICK if quick else FULL))
                print(f"{time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
        report.complete = not quick and not only
    finally:
        if report.figures:  # also when a later part failed
            report.show()
            print(f"Written to benchmarks/results/{report.save().name}")
    if report.complete:
        plot.draw()


def _exit(_number: int, _frame: FrameType | None) -> None:
    sys.exit(1)  # on the way out everything that was started is ended


if __name__ == "__main__":
    typer.run(run)

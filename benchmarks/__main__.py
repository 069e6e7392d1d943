"""`make bench`, or `.venv/bin/python -m benchmarks [--quick] [--only submits --only starts …]`."""

from __future__ import annotations

import os
import signal
import sys
import time
from enum import StrEnum
from types import FrameType
from typing import Annotated

import typer

from benchmarks import cancels, report, starts, statements, submits, throughput
from benchmarks.plan import FULL, QUICK, Plan
from benchmarks.report import Figure
from benchmarks.servers import Bench

NOTES = [
    "Peers, in the same run on the same Redis: uvicorn with uvloop and httptools, one process, a plain `def` endpoint "
    "(in FastAPI's threads, as people write it) that returns noop.delay().id; Celery with its defaults.",
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


def measure(part: Part, bench: Bench, plan: Plan) -> tuple[list[Figure], list[str]]:
    """The figures of one part, and notes."""
    match part:
        case Part.submits:
            return submits.measure(bench, plan), []
        case Part.starts:
            return starts.measure(bench, plan), []
        case Part.throughput:
            return throughput.measure(bench, plan), []
        case Part.statements:
            return statements.measure(bench, plan)
        case Part.cancels:
            return cancels.measure(bench, plan), []


def run(
    quick: Annotated[bool, typer.Option("--quick", help="About a minute: one round, few jobs.")] = False,
    only: Annotated[list[Part] | None, typer.Option(help="Only this; may be repeated.")] = None,
) -> None:
    """Measure the service beside bare Celery and bare FastAPI, on private servers."""
    load = os.getloadavg()[0]
    figures: list[Figure] = []
    notes = list(NOTES)
    if load > (os.cpu_count() or 1) / 2:
        notes.append(f"The machine was busy with other things (load {load:.1f}): trust ratios and cpu ms only.")
    signal.signal(signal.SIGTERM, _exit)
    try:
        with Bench() as bench:
            for part in only or list(Part):
                began = time.monotonic()
                print(f"{part} …", end=" ", file=sys.stderr, flush=True)
                found, said = measure(part, bench, QUICK if quick else FULL)
                print(f"{time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
                figures += found
                notes += said
    finally:
        if figures:  # also when a later part failed
            report.show(figures, notes)
            print(f"Written to benchmarks/results/{report.save(figures, notes, quick, load).name}")


def _exit(_number: int, _frame: FrameType | None) -> None:
    sys.exit(1)  # on the way out everything that was started is ended


if __name__ == "__main__":
    typer.run(run)

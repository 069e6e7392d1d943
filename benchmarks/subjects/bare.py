"""The same tasks on a bare Celery with Redis, configured as its documentation does: two URLs and nothing else."""

from __future__ import annotations

import os
from typing import Any

from celery import Celery

from benchmarks.stand.marks import mark
from benchmarks.subjects import work

QUEUE = "bare"

# "" is no result backend
app: Any = Celery("bare", broker=os.environ["BENCH_BROKER"], backend=os.environ.get("BENCH_BACKEND") or None)
app.conf.task_default_queue = QUEUE


def _noop() -> None:
    """Nothing."""


noop: Any = app.task(_noop, name="noop")
marked: Any = app.task(mark, name="mark")
nap: Any = app.task(work.nap, name="nap")

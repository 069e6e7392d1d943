"""Bare `apply_async` in a loop: `python -m benchmarks.subjects.producer COUNT held|pool`.

Prints when it began and messages per second.
"""

from __future__ import annotations

import json
import sys
import time

from benchmarks.subjects.bare import app, noop


def send(count: int, held: bool) -> tuple[float, float]:
    """Begin and messages per second, with one producer held all the time or one taken from Celery's pool for each."""
    noop.apply_async()  # connects
    began, start = time.time(), time.perf_counter()
    if held:
        with app.producer_or_acquire() as producer:
            for _ in range(count):
                noop.apply_async(producer=producer)
    else:
        for _ in range(count):
            noop.apply_async()
    return began, count / (time.perf_counter() - start)


if __name__ == "__main__":
    print(json.dumps(send(int(sys.argv[1]), sys.argv[2] == "held")))

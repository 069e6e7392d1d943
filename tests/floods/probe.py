"""Another client meanwhile, in a process of its own: `python -m tests.floods.probe PORT`, until its input ends.

Asks for a page of the list, for the health, and submits a job, in turn; prints how long each took.
"""

from __future__ import annotations

import json
import select
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field

from benchmarks.clients.wire import Connection, request_bytes

PAUSE_SECONDS = 0.03
CALLS = {
    "page": ("GET", "/api/v1/jobs?limit=100", "", 200),
    "health": ("GET", "/health", "", 200),
    "submit": ("POST", "/api/v1/tasks/sample.noop?tag=probe", "{}", 202),
}


@dataclass
class Probed:
    """Seconds by call, sorted; filled at the end of the block."""

    seconds: dict[str, list[float]] = field(default_factory=dict[str, list[float]])

    @property
    def submits(self) -> int:
        """How many jobs it submitted."""
        return len(self.seconds["submit"])

    @property
    def longest(self) -> float:
        """Of all calls."""
        return max(max(each) for each in self.seconds.values())


@contextmanager
def probing(port: int) -> Generator[Probed]:
    """Asks for as long as the block lasts."""
    command = [sys.executable, "-m", "tests.floods.probe", str(port)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    probed = Probed()
    try:
        yield probed
    finally:
        said, _ = process.communicate("", timeout=60)
    assert process.returncode == 0, "the other client was refused"
    probed.seconds = {call: sorted(seconds) for call, seconds in json.loads(said).items()}


def main() -> None:
    """The command line above."""
    port = int(sys.argv[1])
    connection = Connection(port)
    seconds: dict[str, list[float]] = defaultdict(list)
    asked = {call: request_bytes(port, path, body, method) for call, (method, path, body, _) in CALLS.items()}
    ended = False
    while not ended or len(seconds) < len(CALLS):
        for call, request in asked.items():
            connection.fresh()
            began = time.perf_counter()
            status, body = connection.send(request)
            seconds[call].append(time.perf_counter() - began)
            assert status == CALLS[call][3], f"{call}: {status} {body[:500]!r}"
        ended = bool(select.select([sys.stdin], [], [], PAUSE_SECONDS)[0])
    print(json.dumps(seconds))


if __name__ == "__main__":
    main()

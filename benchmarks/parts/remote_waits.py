"""`Prefer: wait` of remote workers and their submitters: how late they are told, and what waiting costs.

Fifty wait; the wake is timed from its sending and from its answer, said to the process that they wait at or to another.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

from benchmarks.clients.wake import waiting, wake
from benchmarks.figures import Figure, Measured, spread
from benchmarks.parts.statements import TalkingPostgres, logged, spelled
from benchmarks.plan import Plan
from benchmarks.stand.cpu import Meter
from benchmarks.stand.servers import Bench, Ours, ours_embedded, ours_on_servers

SENT, ANSWERED = "remote waiters, sending of the wake to their answer", "remote waiters, answer to the wake to theirs"
REST = "remote waiters at rest"
AIM_P50_MS, AIM_P99_MS = 10.0, 50.0
WAITERS = 50
CLAIMS, ENDS, SHARED = "claims", "ends", "shared"
_KINDS = {
    CLAIMS: f"{WAITERS} waiting claims, a submit wakes one",
    ENDS: f"{WAITERS} wait for a task each, a report wakes one",
    SHARED: f"{WAITERS} wait for one task, a report wakes all",
}
_SHARED_WAKES_SHARE = 10  # each of them is one for every waiter
_SETTLED_SECONDS = 3.0
_RARER_THAN = 0.15  # a second
_SHOWN = 110


def measure(bench: Bench, plan: Plan) -> Measured:
    """On servers, with a second API process too, and embedded; then the statements of many waiters at rest."""
    figures: list[Figure] = []
    notes: list[str] = []
    with ours_on_servers(bench) as ours, ours.second() as second:
        figures += _wakes("ours", ours, {"": ours.port, ", said to another process": second}, plan)
    with ours_embedded(bench) as ours:
        figures += _wakes("ours embedded", ours, {"": ours.port}, plan)
    for name, service in (("PostgreSQL", _talking_servers), ("SQLite, embedded", _talking_embedded)):
        with service(bench) as (ours, seen):
            figures += _rests(name, ours, seen, plan, notes)
    return figures, notes


def claims(name: str) -> str:
    """The figures of a service's waiting claims, said to the process that they wait at."""
    return f"{name}, {_KINDS[CLAIMS]}"


def _wakes(name: str, ours: Ours, sayers: dict[str, int], plan: Plan) -> list[Figure]:
    figures: list[Figure] = []
    for kind, words in _KINDS.items():
        for said, via in sayers.items():
            rounds = plan.remote_wakes // _SHARED_WAKES_SHARE if kind == SHARED else plan.remote_wakes
            woken = wake(kind, ours.port, via, WAITERS, rounds)
            target = f"{name}, {words}{said}"
            figures += spread(SENT, target, woken.sent, p50=AIM_P50_MS, p99=AIM_P99_MS)
            figures += spread(ANSWERED, target, woken.answered)
    return figures


@contextmanager
def _talking_servers(bench: Bench) -> Generator[tuple[Ours, Callable[[], list[str]]]]:
    with ExitStack() as stack:
        server = stack.enter_context(TalkingPostgres().serving())
        ours = stack.enter_context(ours_on_servers(bench, server))
        yield ours, lambda: logged(server.process.log_file)


@contextmanager
def _talking_embedded(bench: Bench) -> Generator[tuple[Ours, Callable[[], list[str]]]]:
    noted = bench.new_folder() / "statements"
    noted.touch()
    imports = "benchmarks.subjects.ours,benchmarks.subjects.counting"
    with ours_embedded(bench, JOBS_IMPORTS=imports, BENCH_STATEMENTS=str(noted)) as ours:
        yield ours, lambda: noted.read_text("utf-8").splitlines()


def _rests(name: str, ours: Ours, seen: Callable[[], list[str]], plan: Plan, notes: list[str]) -> list[Figure]:
    figures: list[Figure] = []
    waiters, seconds = plan.remote_waiters_at_rest, plan.idle_seconds
    alone: Counter[str] | None = None
    states: dict[str, Any] = {"nobody waits": nullcontext()}
    states |= {f"{waiters} waiting claims": waiting(CLAIMS, ours.port, waiters)}
    states |= {f"{waiters} wait for a task each": waiting(ENDS, ours.port, waiters)}
    for state, resting in states.items():
        with resting:
            time.sleep(_SETTLED_SECONDS)
            before, meter = len(seen()), Meter([ours.process.pid])
            time.sleep(seconds)
            share = meter.milliseconds() / seconds / 10
            counts = Counter(spelled(statement) for statement in seen()[before:])
        where = f"{name}, {state}"
        alone = alone or counts
        figures.append(Figure(REST, where, counts.total() / seconds, "statements/s"))
        figures.append(Figure(REST, f"{where}: the process", share, "% of a core"))
        notes += [
            f"{where}, more than with nobody: {number / seconds:.2f}/s {statement[:_SHOWN]}"
            for statement, number in (counts - alone).most_common()
            if number / seconds >= _RARER_THAN
        ]
    return figures

"""Statements per job, counted: PostgreSQL writes every one to its log, on SQLite a listener does.

Sequential: one job at a time, each to its end, so nothing shares a transaction. Streamed: submits from many clients.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from benchmarks.clients.load import burst
from benchmarks.figures import Figure, Measured
from benchmarks.plan import Plan
from benchmarks.stand.servers import Bench, Ours, ours_embedded, ours_on_servers, until
from tests.support.postgres import PostgresServer

GROUP = "statements per job"
# "LOG:  execute _pg3_0: UPDATE …" or "LOG:  statement: BEGIN"; further lines of a statement are indented
_LOGGED = re.compile(r"^\d+ celery-jobs LOG:  (?:execute [^:]*|statement): (.*)")
_RARER_THAN = 0.02
_SHOWN = 110


class TalkingPostgres(PostgresServer):
    """Logs every statement, with the program that sent it."""

    def command(self) -> list[str | Path]:
        """As always, and the options for it."""
        return [*super().command(), "-c", "log_statement=all", "-c", "log_line_prefix=%p %a "]


def measure(bench: Bench, plan: Plan) -> Measured:
    """The counts, and the statements themselves as notes."""
    figures: list[Figure] = []
    notes: list[str] = []
    with ExitStack() as stack:
        server = stack.enter_context(TalkingPostgres().serving())
        ours = stack.enter_context(ours_on_servers(bench, server))
        stack.enter_context(ours.worker("prefork", 2))
        _count("PostgreSQL, prefork", ours, lambda: logged(server.process.log_file), plan.counted, figures, notes)
    noted = bench.new_folder() / "statements"
    noted.touch()
    imports = "benchmarks.subjects.ours,benchmarks.subjects.counting"
    with ours_embedded(bench, JOBS_IMPORTS=imports, BENCH_STATEMENTS=str(noted)) as ours:
        _count("SQLite, embedded", ours, lambda: noted.read_text("utf-8").splitlines(), plan.counted, figures, notes)
    return figures, notes


def _count(
    where: str, ours: Ours, seen: Callable[[], list[str]], jobs: int, figures: list[Figure], notes: list[str]
) -> None:
    _one_by_one(ours, 3)  # what only a first job needs
    time.sleep(1.5)
    idle = len(seen())
    time.sleep(3)
    figures.append(Figure(GROUP, f"{where}, idle service", (len(seen()) - idle) / 3, "statements/s"))
    for name, run in (("sequential", _one_by_one), ("streamed", _streamed)):
        before = len(seen())
        run(ours, jobs)
        time.sleep(0.3)  # the log is behind by a moment
        counts = Counter(spelled(statement) for statement in seen()[before:])
        ours.clear()
        ours.pause(False)
        figures.append(Figure(GROUP, f"{where}, {name}", counts.total() / jobs, "statements"))
        commits = counts["COMMIT"] / jobs
        figures.append(Figure(GROUP, f"{where}, {name}, COMMIT", commits, "statements"))
        notes += [
            f"{where}, {name}: {number / jobs:.2f} {statement[:_SHOWN]}"
            for statement, number in counts.most_common()
            if number / jobs >= _RARER_THAN
        ]


def _one_by_one(ours: Ours, jobs: int) -> None:
    done = ours.records.completed()
    for number in range(1, jobs + 1):
        ours.call("POST", "/api/v1/tasks/noop")
        until(lambda wanted=done + number: ours.records.completed() >= wanted, "the job is completed", 30)
        time.sleep(0.02)  # what follows the end of a job belongs to it


def _streamed(ours: Ours, jobs: int) -> None:
    done = ours.records.completed()
    burst(ours.port, "/api/v1/tasks/noop", requests=jobs)
    until(lambda: ours.records.completed() >= done + jobs, "the jobs are completed", 120)


def logged(log: Path) -> list[str]:
    """The statements of the service in a server's log; those of this program do not carry its name."""
    statements: list[str] = []
    for line in log.read_text("utf-8", "replace").splitlines():
        if match := _LOGGED.match(line):
            statements.append(match[1])
        elif line.startswith("\t") and statements:
            statements[-1] += f" {line.strip()}"
    return statements


def spelled(statement: str) -> str:
    """Shortened, and the same for statements that differ by a number in a name."""
    text = re.sub(r"sa_savepoint_\d+", "sa_savepoint_n", " ".join(statement.split()))
    text = re.sub(r"(SELECT|RETURNING) (jobs\.\w+(?: AS \w+)?, ){3,}", r"\1 …, ", text)
    return re.sub(r"\((?:\w+, ){4,}\w+\)", "(…)", text)

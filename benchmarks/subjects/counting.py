"""Imported into a process of the service (JOBS_IMPORTS): writes down every statement that SQLAlchemy runs on SQLite."""

from __future__ import annotations

import os
from typing import Any

from sqlalchemy import Engine, event

_file = os.open(os.environ["BENCH_STATEMENTS"], os.O_WRONLY | os.O_APPEND)


def _write(statement: str) -> None:
    os.write(_file, (" ".join(statement.split()) + "\n").encode())


@event.listens_for(Engine, "before_cursor_execute")
def _executes(_connection: Any, _cursor: Any, statement: str, parameters: Any, _context: Any, many: bool) -> None:
    for _ in range(len(parameters) if many else 1):  # the driver runs it once for each
        _write(statement)


@event.listens_for(Engine, "commit")
def _commits(_connection: Any) -> None:
    _write("COMMIT")


@event.listens_for(Engine, "rollback")
def _rolls_back(_connection: Any) -> None:
    _write("ROLLBACK")

"""Looking at the service's record table from outside, with as little load as can be."""

from __future__ import annotations

from sqlalchemy import create_engine, text

_DRIVERS = {"postgresql:": "postgresql+psycopg:", "sqlite:": "sqlite:"}


class Records:
    """The table of one database; connects when it is first used."""

    def __init__(self, url: str) -> None:
        kind, _, rest = url.partition(":")
        self._engine = create_engine(_DRIVERS[f"{kind}:"] + rest, isolation_level="AUTOCOMMIT", pool_size=1)
        self.sqlite = kind == "sqlite"

    def _number(self, query: str) -> int:
        with self._engine.connect() as connection:
            return int(connection.execute(text(query)).scalar_one())

    def completed(self) -> int:
        """How many jobs are completed."""
        return self._number("SELECT count(*) FROM jobs WHERE status = 'completed'")

    def running(self) -> int:
        """How many jobs run or were handed to the broker."""
        handed_over = "(status = 'pending' AND dispatched_at IS NOT NULL)"
        return self._number(f"SELECT count(*) FROM jobs WHERE status IN ('running', 'canceling') OR {handed_over}")

    def text(self, query: str) -> str:
        """The one value that the query gives."""
        with self._engine.connect() as connection:
            return str(connection.execute(text(query)).scalar_one())

    def run(self, statement: str) -> None:
        """One statement, committed."""
        with self._engine.connect() as connection:
            connection.execute(text(statement))

    def clear(self) -> None:
        """Forget every job; call while nothing runs."""
        with self._engine.connect() as connection:
            connection.execute(text("DELETE FROM jobs" if self.sqlite else "TRUNCATE jobs"))
            if not self.sqlite:
                connection.execute(text("VACUUM jobs"))

    def close(self) -> None:
        """Close the connection."""
        self._engine.dispose()

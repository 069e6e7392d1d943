"""Real processes: started in a session of their own, ended by id, and none left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import psutil

from tests.support.waiting import wait_until

# In the environment of everything that this test process starts, so that a descendant is known wherever it went.
MARK, MARK_VALUE = "CELERY_JOBS_TEST_RUN", f"{os.getpid()}-{time.time_ns()}"
os.environ[MARK] = MARK_VALUE

TAIL_LINES = 60


class ProcessFailed(AssertionError):
    """A process ended, or did not end, against what the test expected; shows the end of its log."""


class Process:
    """A running program with its log in a file; `name` is how failures speak of it."""

    def __init__(
        self,
        args: Sequence[str | Path],
        *,
        log: Path,
        name: str | None = None,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        user: int | None = None,
        group: int | None = None,
    ) -> None:
        self.args = [str(arg) for arg in args]
        self.name = name or Path(self.args[0]).name
        self.log_file = log
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            self._popen = subprocess.Popen(
                self.args,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**(os.environ if env is None else env), MARK: MARK_VALUE},
                cwd=cwd,
                user=user,
                group=group,
                extra_groups=None if user is None else [],
                start_new_session=True,  # a signal to its group hits its children and nobody else
            )
        self.pid = self._popen.pid
        self._family = {psutil.Process(self.pid)}

    @property
    def running(self) -> bool:
        """Not yet ended, though it may be stopped."""
        return self._popen.poll() is None

    @property
    def returncode(self) -> int | None:
        """None while it runs; negative when a signal ended it."""
        return self._popen.poll()

    @property
    def log(self) -> str:
        """All that it wrote so far."""
        return self.log_file.read_text(encoding="utf-8", errors="replace")

    def log_tail(self, lines: int = TAIL_LINES) -> str:
        """The last lines that it wrote, under its name."""
        return "\n".join([f"--- {self.name} (pid {self.pid}, exit {self.returncode})", *self.log.splitlines()[-lines:]])

    def children(self) -> list[psutil.Process]:
        """Its living descendants, such as the children of a prefork pool."""
        try:
            family = psutil.Process(self.pid).children(recursive=True)
            return [child for child in family if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]
        except psutil.NoSuchProcess:
            return []

    def family(self) -> list[psutil.Process]:
        """It and every descendant that was ever seen and lives, also one whose parent has gone."""
        with contextlib.suppress(psutil.NoSuchProcess):
            self._family.update(psutil.Process(self.pid).children(recursive=True))
        for process in _of_session(self.pid):
            self._family.add(process)
        return [process for process in self._family if alive(process)]

    def send(self, number: signal.Signals) -> None:
        """One signal to it alone."""
        self._popen.send_signal(number)

    def terminate(self) -> None:
        """Ask it, and not its children, to end (SIGTERM)."""
        self.send(signal.SIGTERM)

    def interrupt(self) -> None:
        """What Ctrl-C does (SIGINT)."""
        self.send(signal.SIGINT)

    def stop(self) -> None:
        """Freeze it and its descendants (SIGSTOP)."""
        signal_all(self.family(), signal.SIGSTOP)

    def cont(self) -> None:
        """Let it and its descendants go on (SIGCONT)."""
        signal_all(self.family(), signal.SIGCONT)

    def kill9(self) -> None:
        """End it and its descendants as a crash of the machine would, and wait until they are gone."""
        wait_until(self._killed, f"the processes of {self.name} are gone", 10)
        self._popen.wait(10)

    def _killed(self) -> bool:
        """Again and again, since a pool may start a child between two looks."""
        family = self.family()
        signal_all(family, signal.SIGKILL)
        self._popen.poll()  # reaps it
        return not family

    def kill9_alone(self) -> None:
        """End only the process itself (SIGKILL); what its children do then is the test's business."""
        self.family()
        self._popen.kill()
        self._popen.wait(10)

    def wait(self, timeout: float = 20.0) -> int:
        """Its exit status."""
        try:
            return self._popen.wait(timeout)
        except subprocess.TimeoutExpired:
            raise ProcessFailed(f"{self.name} still runs after {timeout:g} s\n{self.log_tail()}") from None

    def wait_for_log(self, text: str, timeout: float = 30.0) -> None:
        """Until it has written `text`; fails at once when it ends before."""
        wait_until(lambda: text in self.log or self._must_run(), f"{self.name} writes {text!r}", timeout)

    def _must_run(self) -> bool:
        if not self.running:
            raise ProcessFailed(f"{self.name} ended\n{self.log_tail()}")
        return False

    def end(self, grace: float = 10.0) -> None:
        """Whatever state it is in: ask, wait `grace` seconds, then kill it with all its descendants."""
        self.cont()
        if self.running and grace > 0:
            self.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._popen.wait(grace)
        self.kill9()


def alive(process: psutil.Process) -> bool:
    """Runs; a zombie does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def signal_all(processes: Iterable[psutil.Process], number: signal.Signals) -> None:
    """One signal to each; psutil sees to it that a reused id is not hit."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def _of_session(session: int) -> list[psutil.Process]:
    found: list[psutil.Process] = []
    for pid in psutil.pids():
        with contextlib.suppress(OSError, psutil.NoSuchProcess):
            if os.getsid(pid) == session:
                found.append(psutil.Process(pid))
    return found


def left_behind() -> list[psutil.Process]:
    """Living processes that carry this test process's mark."""
    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            ours = process.pid != os.getpid() and process.environ().get(MARK) == MARK_VALUE
            # multiprocessing keeps a tracker for as long as the process lives that needs it
            if ours and alive(process) and "_tracker import main" not in " ".join(process.cmdline()):
                found.append(process)
    return found


class Processes:
    """Starts processes for a test and ends what still runs of them at its end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started: list[Process] = []

    def start(
        self,
        args: Sequence[str | Path],
        *,
        name: str | None = None,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        user: int | None = None,
        group: int | None = None,
    ) -> Process:
        """A process with its log in this folder."""
        name = name or Path(args[0]).name
        log = self.folder / f"{name}-{len(self.started)}.log"
        process = Process(args, log=log, name=name, env=env, cwd=cwd, user=user, group=group)
        self.started.append(process)
        return process

    def end_all(self, grace: float = 0.0) -> None:
        """Killed if no grace; all of them, also when one makes trouble. Prints logs, which pytest shows on failure."""
        errors: list[Exception] = []
        for process in reversed(self.started):
            try:
                process.end(grace)
            except Exception as error:  # the others still have to be ended
                errors.append(error)
            print(process.log_tail())
        self.started.clear()
        if errors:
            raise ExceptionGroup("processes that did not end", errors)

"""The faults of a storm. Each hurts one thing, brings it back, and writes down which processes it ended or froze."""

from __future__ import annotations

import random
import shutil
import signal
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing

import psutil

from tests.chaos.deployment import Deployment, Unit
from tests.chaos.toll import Toll
from tests.support.postgres import PostgresServer
from tests.support.processes import alive, signal_all
from tests.support.redis import RedisServer
from tests.support.servers import Server
from tests.support.waiting import wait_until

LOOK_SECONDS = 0.1
# a process that starts while the database is down says so and ends, which its supervisor makes good
REFUSES_TO_START = ("The database cannot be reached", "The database is not reachable")
EXIT_SECONDS = 20.0  # a process that is told to end; its jobs are short


class Weather:
    """Throws faults at a deployment until told to stop; then everything is up again."""

    def __init__(self, here: Deployment, timeout_seconds: float, seed: int, pause_seconds: tuple[float, float]) -> None:
        self.toll = Toll()
        self._here = here
        self._timeout = timeout_seconds
        self._dice = random.Random(seed)
        self._pause = pause_seconds
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []
        self._errors: list[BaseException] = []

    def start(self) -> None:
        """Begin."""
        for work in (self._throw, self._watch):
            thread = threading.Thread(target=self._guarded, args=(work,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def stop(self) -> None:
        """No new fault; returns when all is up again, and raises what went wrong with the storm itself."""
        self._over.set()
        while self._threads:
            self._threads.pop(0).join(120)
        if self._errors:
            raise BaseExceptionGroup("faults that could not be carried out", self._errors)

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self._errors.append(error)

    def _throw(self) -> None:
        names = list(FAULTS)
        while not self._over.wait(self._dice.uniform(*self._pause)):
            name = self._dice.choices(names, [FAULTS[each][1] for each in names])[0]
            thread = threading.Thread(
                target=self._guarded, args=(lambda name=name: self._carry_out(name),), daemon=True
            )
            self._threads.append(thread)
            thread.start()

    def _carry_out(self, name: str) -> None:
        since = time.time()
        if FAULTS[name][0](self):
            self.toll.done[name] += 1
            self.toll.log.append((since, time.time(), name))

    def _watch(self) -> None:
        """As a supervisor: what ended by itself is noted and started again."""
        while not self._over.wait(LOOK_SECONDS):
            for unit in self._here.units:
                if unit.lock.acquire(blocking=False):
                    try:
                        if not unit.process.running:
                            self._ended_alone(unit)
                    finally:
                        unit.lock.release()

    def _ended_alone(self, unit: Unit) -> None:
        told = unit.process.log_tail(15)
        if not any(reason in told for reason in REFUSES_TO_START):
            self.toll.died_alone.append(told)
        self.toll.killed([unit.process.pid])
        unit.start()

    def _some(self, units: list[Unit]) -> Unit | None:
        """One that no other fault is at; the caller releases it."""
        free = [unit for unit in self._dice.sample(units, len(units)) if unit.lock.acquire(blocking=False)]
        for unit in free[1:]:
            unit.lock.release()
        return free[0] if free else None

    def _hurt(self, units: list[Unit], how: Callable[[Unit], None]) -> bool:
        unit = self._some(units)
        if unit is None:
            return False
        try:
            how(unit)
        finally:
            unit.lock.release()
        return True

    def _back_after(self, unit: Unit, most: float = 3.0) -> None:
        time.sleep(self._dice.uniform(0.0, most))
        unit.start()

    # processes

    def kill_worker(self) -> bool:
        return self._hurt(self._here.workers, self._kill)

    def kill_api(self) -> bool:
        return self._hurt(self._here.apis, self._kill)

    def _kill(self, unit: Unit) -> None:
        family = [process.pid for process in unit.process.family()]
        unit.process.kill9()
        self.toll.killed(family)
        self._back_after(unit)

    def kill_main_alone(self) -> bool:
        return self._hurt([unit for unit in self._here.workers if unit.forks], self._kill_main)

    def _kill_main(self, unit: Unit) -> None:
        """Its children end by themselves; how long that takes is theirs to answer for."""
        family = unit.process.family()
        unit.process.kill9_alone()
        wait_until(lambda: not any(map(alive, family)), "the children of a killed worker end", 30, interval=0.005)
        self.toll.killed(process.pid for process in family)
        self._back_after(unit)

    def kill_child(self) -> bool:
        return self._hurt([unit for unit in self._here.workers if unit.forks], self._kill_child)

    def _kill_child(self, unit: Unit) -> None:
        children = unit.process.children()
        if children:
            child: psutil.Process = self._dice.choice(children)
            signal_all([child], signal.SIGKILL)
            self.toll.killed([child.pid])

    def freeze_worker(self) -> bool:
        return self._hurt(self._here.workers or self._here.apis, self._freeze)

    def _freeze(self, unit: Unit) -> None:
        family = unit.process.family()
        with self.toll.frozen(process.pid for process in family):
            signal_all(family, signal.SIGSTOP)
            time.sleep(self._dice.uniform(0.3, 2.0) * self._timeout)
            signal_all(family, signal.SIGCONT)

    def end_worker(self) -> bool:
        return self._hurt(self._here.workers, self._terminate)

    def end_api(self) -> bool:
        return self._hurt(self._here.apis, self._terminate)

    def _terminate(self, unit: Unit) -> None:
        family = [process.pid for process in unit.process.family()]
        unit.process.terminate()
        deadline = time.monotonic() + EXIT_SECONDS
        while unit.process.running and time.monotonic() < deadline:
            time.sleep(0.02)
        if unit.process.running:
            self.toll.late_exits.append(unit.process.log_tail(15))
        unit.process.kill9()
        self.toll.killed(family)
        self._back_after(unit)

    # servers

    def _with_server(self, hurt: Callable[[], None]) -> bool:
        if not self._here.servers.acquire(blocking=False):
            return False
        try:
            hurt()
        finally:
            self._here.servers.release()
        return True

    def _down(self, kill: Callable[[], None], start: Callable[[], None]) -> None:
        kill()
        time.sleep(self._dice.uniform(0.0, 5.0))
        start()

    def _paused(self, server: Server) -> None:
        server.pause()
        time.sleep(self._dice.uniform(1.0, 8.0))
        server.resume()

    def kill_broker(self) -> bool:
        redis = self._here.redis
        return redis is not None and self._with_server(lambda: self._down(redis.kill9, redis.start))

    def empty_broker(self) -> bool:
        """Restarted without what it held. Not for a service that keeps its records there: it would lose them all."""
        redis = self._here.redis
        if redis is None or not self._here.ours:
            return False

        def lose_everything() -> None:
            redis.kill9()
            shutil.rmtree(redis.folder / "appendonlydir")

        return self._with_server(lambda: self._down(lose_everything, redis.start))

    def pause_broker(self) -> bool:
        redis = self._here.redis
        return redis is not None and self._with_server(lambda: self._paused(redis))

    def cut_broker(self) -> bool:
        redis = self._here.redis
        return redis is not None and self._with_server(lambda: self._cut(redis))

    def _cut(self, redis: RedisServer) -> None:
        with redis.client() as client:
            for kind in ("normal", "pubsub"):
                client.client_kill_filter(_type=kind, skipme=True)

    def kill_database(self) -> bool:
        postgres = self._here.postgres
        return postgres is not None and self._with_server(
            lambda: self._down(lambda: self._crash(postgres), postgres.start)
        )

    def _crash(self, postgres: PostgresServer) -> None:
        postgres.pause()  # or its first process would start others while they are killed
        postgres.kill9()

    def stop_database(self) -> bool:
        postgres = self._here.postgres
        return postgres is not None and self._with_server(lambda: self._down(postgres.stop, postgres.start))

    def pause_database(self) -> bool:
        postgres = self._here.postgres
        return postgres is not None and self._with_server(lambda: self._paused(postgres))

    def lock_database(self) -> bool:
        """Another program holds SQLite's writer lock."""
        return self._here.sqlite is not None and self._with_server(self._lock)

    def _lock(self) -> None:
        with closing(sqlite3.connect(str(self._here.sqlite), timeout=30, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            time.sleep(self._dice.uniform(1.0, 8.0))
            connection.execute("ROLLBACK")


# what to do, and how often beside the others
FAULTS: dict[str, tuple[Callable[[Weather], bool], int]] = {
    "kill -9 of a worker with its children": (Weather.kill_worker, 3),
    "kill -9 of a worker's main process": (Weather.kill_main_alone, 2),
    "kill -9 of a pool's child": (Weather.kill_child, 3),
    "kill -9 of an API process": (Weather.kill_api, 3),
    "SIGSTOP of a worker, 0.3 to 2 T": (Weather.freeze_worker, 2),
    "SIGTERM of a worker": (Weather.end_worker, 2),
    "SIGTERM of an API process": (Weather.end_api, 2),
    "kill -9 of the broker": (Weather.kill_broker, 2),
    "restart of the broker, empty": (Weather.empty_broker, 1),
    "SIGSTOP of the broker, 1 to 8 s": (Weather.pause_broker, 2),
    "cut of all connections to the broker": (Weather.cut_broker, 2),
    "kill -9 of the database": (Weather.kill_database, 2),
    "stop and start of the database": (Weather.stop_database, 2),
    "SIGSTOP of the database, 1 to 8 s": (Weather.pause_database, 2),
    "SQLite locked by another program, 1 to 8 s": (Weather.lock_database, 3),
}

"""The ground that other tests stand on: private servers, processes, ports and waiting do what they say."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable

import psycopg
import pytest
import redis

from tests.support import sse
from tests.support.ports import free_port
from tests.support.postgres import PostgresServer
from tests.support.processes import Processes, left_behind
from tests.support.redis import RedisServer
from tests.support.waiting import GaveUp, wait_until, wait_until_async

# A parent that starts a child in a session of its own, as daemons do.
STRAY = """
import subprocess, sys
subprocess.run([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
"""


def test_waiting_tells_what_it_last_saw() -> None:
    with pytest.raises(GaveUp, match=r"until the job starts; last seen: \[\]"):
        wait_until(list, "the job starts", 0.05)


def test_waiting_tells_the_error_it_last_saw() -> None:
    with pytest.raises(GaveUp, match="ZeroDivisionError"):
        wait_until(lambda: 1 / 0, "division works", 0.05, ignore=ZeroDivisionError)


async def test_waiting_gives_the_first_true_value() -> None:
    values = iter([0, 0, 3, 4])

    async def following() -> int:
        return next(values)

    assert await wait_until_async(following, "a value is there") == 3


def test_ports_are_given_once() -> None:
    ports = [free_port() for _ in range(50)]
    assert len(set(ports)) == 50


def test_killing_reaches_descendants_in_other_sessions(processes: Processes) -> None:
    process = processes.start([sys.executable, "-c", STRAY])
    wait_until(process.children, "the child runs")
    process.kill9()
    assert process.returncode == -signal.SIGKILL
    assert process.pid not in {each.pid for each in left_behind()}
    assert not process.family()


def test_an_orphan_is_noticed(processes: Processes) -> None:
    process = processes.start([sys.executable, "-c", STRAY])
    children = wait_until(process.children, "the child runs")
    process.kill9_alone()
    assert {each.pid for each in children} <= {each.pid for each in left_behind()}


def test_a_process_that_ends_early_is_told_with_its_log(processes: Processes) -> None:
    process = processes.start([sys.executable, "-c", "print('no such option')"])
    with pytest.raises(AssertionError, match="no such option"):
        process.wait_for_log("ready")


def test_redis_databases_are_apart(redis_server: RedisServer) -> None:
    first, second = (redis.Redis.from_url(redis_server.new_database()) for _ in range(2))
    with first, second:
        first.set("key", "1")
        assert second.get("key") is None


@pytest.mark.parametrize("persistent", [True, False])
def test_redis_restarts_on_its_port(own_redis: Callable[..., RedisServer], persistent: bool) -> None:
    server = own_redis(persistent=persistent)
    with server.client() as client:
        client.set("key", "1")
        server.restart()
        assert client.exists("key") == int(persistent)


def test_paused_redis_keeps_connections_and_is_silent(own_redis: Callable[..., RedisServer]) -> None:
    server = own_redis()
    with redis.Redis.from_url(server.url(), socket_timeout=0.2, retry=None) as client:
        client.ping()
        server.pause()
        with pytest.raises(redis.TimeoutError):
            client.ping()
        server.resume()
        assert wait_until(client.ping, "redis answers", ignore=redis.RedisError)


def _with_table(url: str) -> None:
    with psycopg.connect(url) as connection:
        connection.execute("create table kept (n integer)")


def test_postgres_copies_a_prepared_database(postgres_server: PostgresServer) -> None:
    first, second = (postgres_server.new_database(_with_table) for _ in range(2))
    assert first != second
    for url in (first, second):
        with psycopg.connect(url) as connection:
            assert connection.execute("select count(*) from kept").fetchone() == (0,)


def test_postgres_syncs_every_commit(postgres_server: PostgresServer) -> None:
    with psycopg.connect(postgres_server.new_database()) as connection:
        assert connection.execute("show fsync").fetchone() == ("on",)
        assert connection.execute("show synchronous_commit").fetchone() == ("on",)


def test_postgres_keeps_what_was_committed_over_a_crash(own_postgres: Callable[[], PostgresServer]) -> None:
    server = own_postgres()
    url = server.new_database(_with_table)
    server.kill9()
    server.start()
    server.pause()
    server.resume()
    server.restart()
    with psycopg.connect(url) as connection:
        assert connection.execute("select count(*) from kept").fetchone() == (0,)


def test_events_are_read_as_browsers_read_them() -> None:
    lines = ["id: 1-0-0", 'data: {"status":', 'data: "pending"}', "", ": still here", "data: {}", "", "data: cut off"]
    assert list(sse.parse(lines)) == [
        sse.Event("1-0-0", {"status": "pending"}),
        sse.Event(comment="still here"),
        sse.Event(None, {}),
    ]

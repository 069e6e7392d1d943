"""Who may judge: after an outage in which only writes failed, every worker has a full interval to report in."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import contextmanager

import psycopg
from sqlalchemy import select

from celery_jobs.records import workers
from celery_jobs.records.settings import Settings
from celery_jobs.records.store import Store
from celery_jobs.records.tables import workers as table
from celery_jobs.records.workers import WorkerRow
from celery_jobs.tasks.dispatch import Dispatcher
from celery_jobs.tasks.hints import Hints
from celery_jobs.tasks.sweep import Sweeper
from tests.support.postgres import PostgresServer
from tests.support.stack import migrate
from tests.support.waiting import stays

T = 1.5
WORKER = WorkerRow("one", "w@h", "h", 1, "prefork", 1, ["jobs"], [])


@contextmanager
def no_worker_can_be_written(url: str) -> Generator[None]:
    """As on a server that has become a standby, which still reads."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN RAISE EXCEPTION SQLSTATE '25006'; END $$"
        )
        connection.execute(
            "CREATE TRIGGER refused BEFORE UPDATE OR DELETE ON workers FOR EACH STATEMENT EXECUTE FUNCTION refuse()"
        )
        yield
        connection.execute("DROP TRIGGER refused ON workers")


def known(store: Store) -> bool:
    return store.read(lambda connection: connection.execute(select(table.c.incarnation)).all()) != []


def test_an_outage_that_kept_a_worker_from_reporting_does_not_end_it(postgres_server: PostgresServer) -> None:
    url = postgres_server.new_database(migrate)
    settings = Settings.model_validate({"DATABASE_URL": url, "worker_timeout_seconds": T})
    store, hints = Store(url), Hints(settings)
    sweeper = Sweeper(store, Dispatcher(store), hints, settings)
    store.write(workers.register, WORKER, 2 * T)
    sweeper.start()
    try:
        time.sleep(1.3 * T)  # from now on it may judge
        with no_worker_can_be_written(url):
            time.sleep(T)  # the lease ends while nobody can renew it
        stays(lambda: known(store), "the worker is known", T / 3)
        assert store.write(workers.renew, WORKER.incarnation, 2 * T, 1)
        stays(lambda: known(store), "the worker is known", T)
    finally:
        sweeper.stop()
        store.close()

"""Who is told that nothing was changed can rely on it, also where the second try of a write fails in another way."""

from __future__ import annotations

import psycopg
import pytest
from sqlalchemy import Connection, make_url, text

from celery_jobs.records import queues
from celery_jobs.records.errors import DatabaseUnavailable
from celery_jobs.records.store import AsyncStore, Store
from tests.support.postgres import PostgresServer
from tests.support.proxy import Proxy, says
from tests.support.stack import migrate
from tests.support.waiting import wait_until_async


@pytest.mark.asyncio
async def test_a_commit_whose_server_died_is_in_doubt(postgres_server: PostgresServer) -> None:
    url = postgres_server.new_database(migrate)
    with Proxy(postgres_server.port).serving() as proxy:
        store = Store(str(make_url(url).set(port=proxy.port)))
        face = AsyncStore(store)
        await face.write(queues.ensure, ["jobs"])
        proxy.lose_answer_to_commit_of(says("UPDATE queues SET paused"), then_refuse=True)
        with pytest.raises(DatabaseUnavailable) as told:
            await face.write(queues.change, "jobs", paused=True)
        assert told.value.in_doubt
        await face.close()
        store.close()

    async def recorded() -> bool:
        with psycopg.connect(url) as connection:
            return connection.execute("SELECT paused FROM queues WHERE name = 'jobs'").fetchone() == (True,)

    await wait_until_async(recorded, "the commit that was not answered took effect", 10)


@pytest.mark.asyncio
async def test_what_the_server_refused_is_not(postgres_server: PostgresServer) -> None:
    store = Store(postgres_server.new_database(migrate))
    face = AsyncStore(store)

    def locked(connection: Connection) -> None:
        connection.execute(text("DO $$ BEGIN RAISE EXCEPTION SQLSTATE '55P03'; END $$"))

    with pytest.raises(DatabaseUnavailable) as told:
        await face.write_one(locked)
    assert not told.value.in_doubt
    await face.close()
    store.close()

"""A database that goes away under open streams: they stay open, and catch up when it is back."""

from __future__ import annotations

import time
from collections.abc import Callable

from tests.support.postgres import PostgresServer
from tests.support.service import Service
from tests.support.waiting import wait_until


def test_a_stream_survives_an_outage_of_the_database_and_catches_up(
    new_service: Callable[..., Service], own_postgres: Callable[[], PostgresServer]
):
    server = own_postgres()
    served = new_service(DATABASE_URL=server.new_database(), JOBS_SHUTDOWN_TIMEOUT_SECONDS="0").up()
    job_id = served.client.post("/api/v1/compute", json={"duration": 2}).json()["job_id"]
    with served.stream(f"/api/v1/jobs/{job_id}/$stream") as stream:
        stream.until(lambda event: event.status == "running", "the job runs")
        server.stop()
        began = time.monotonic()
        answer = served.client.post("/api/v1/compute", json={"duration": 2})
        assert time.monotonic() - began < 5
        assert (answer.status_code, answer.json()["type"]) == (503, "urn:servicekit:error:unavailable")
        assert int(answer.headers["retry-after"]) >= 1
        for path in (f"/api/v1/jobs/{job_id}", f"/api/v1/jobs/{job_id}/$stream", "/api/v1/jobs"):
            assert served.client.get(path).status_code == 503, path
        wait_until(lambda: served.client.get("/readyz").status_code == 503, "a new look at the database")
        health = served.client.get("/health")
        assert (health.status_code, health.json()["status"]) == (503, "unhealthy")
        assert served.client.get("/livez").status_code == 200
        server.start()
        rest = stream.rest()
    assert [event.status for event in rest] == ["completed"]
    wait_until(lambda: served.client.get("/readyz").status_code == 200, "the service is ready again")

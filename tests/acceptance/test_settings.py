"""Each setting takes effect in a real service; those that other files test are not tested again here."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.acceptance.kinds import own
from tests.support.jobs import good
from tests.support.ports import free_port
from tests.support.postgres import PostgresServer
from tests.support.processes import Processes
from tests.support.redis import RedisServer
from tests.support.service import Service
from tests.support.stack import EMBEDDED, PREFORK, SQLITE, Kind, Stack, migrate
from tests.support.waiting import wait_until

NewStack = Callable[..., Stack]
NewService = Callable[..., Service]
CELERY = Path(sys.executable).with_name("celery")
NOTE = "/api/v1/tasks/sample.note"


def served_at(service: Service, *args: str, **env: str) -> str:
    """The address that the service prints when it is ready."""
    process = service.start(*args, **env)
    process.wait_for_log("Serving on ", 60)
    match = re.search(r"Serving on (\S+)", process.log)
    assert match is not None
    return match[1]


def test_host_and_port_say_where_it_listens(new_service: NewService) -> None:
    port = free_port()
    service = new_service(JOBS_HOST="127.0.0.2", JOBS_PORT=str(port), JOBS_ALLOWED_HOSTS=f"127.0.0.2:{port}")
    assert served_at(service, "up") == f"http://127.0.0.2:{port}"
    assert httpx.get(f"http://127.0.0.2:{port}/readyz").json() == {"status": "ready"}
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"http://127.0.0.1:{port}/readyz")


def test_port_0_takes_a_free_one_and_says_which(new_service: NewService) -> None:
    url = served_at(new_service(JOBS_PORT="0"), "up")
    assert httpx.get(f"{url}/readyz").status_code == 200


def test_insecure_allows_an_address_that_others_reach(new_service: NewService) -> None:
    service = new_service(JOBS_INSECURE="true", JOBS_PORT="0", JOBS_HOST="0.0.0.0")
    port = served_at(service, "up").rpartition(":")[2]
    assert httpx.get(f"http://127.0.0.1:{port}/readyz").status_code == 200
    foreign = httpx.get(f"http://127.0.0.1:{port}/readyz", headers={"Host": "jobs.example"})
    assert foreign.status_code == 403


@own(EMBEDDED, SQLITE)
def test_the_default_queue_is_that_of_tasks_that_name_none(new_stack: NewStack, kind: Kind) -> None:
    stack = new_stack(kind, JOBS_DEFAULT_QUEUE="mine").start()
    job = stack.jobs.submit("note")
    assert stack.jobs.wait(job, "completed")["queue"] == "mine"
    assert stack.jobs.client.get("/api/v1/queues/mine").status_code == 200
    assert stack.jobs.client.get("/api/v1/queues/jobs").status_code == 404


def test_concurrency_is_how_many_jobs_run_at_once(new_stack: NewStack) -> None:
    stack = new_stack(EMBEDDED)
    served = stack.service.up(JOBS_CONCURRENCY="2")
    stack.apis.append(served)
    names = [stack.name() for _ in range(3)]
    jobs = [stack.jobs.submit("hold", name=name) for name in names]
    wait_until(lambda: [stack.jobs.status(job) for job in jobs[:2]] == ["running"] * 2, "two run")
    stack.journal.release(names[0])
    stack.jobs.wait(jobs[2], "running")
    assert stack.journal.starts(jobs[2])[0].at >= stack.journal.ends(jobs[0])[0].at
    stack.release_all()


def test_an_idempotency_key_is_forgotten_after_its_time(new_stack: NewStack) -> None:
    stack = new_stack(EMBEDDED, JOBS_IDEMPOTENCY_SECONDS="0.2").start()
    client, key = stack.jobs.client, {"Idempotency-Key": "once"}
    first = good(client.post(NOTE, json={"mark": "a"}, headers=key), 202).json()["job_id"]
    wait_until(lambda: client.post(NOTE, json={"mark": "b"}, headers=key).status_code == 202, "another body is taken")
    second = [job["id"] for job in stack.jobs.list()]
    assert len(second) == 2
    assert first in second


@pytest.mark.slow
def test_a_worker_whose_patience_ends_gives_up_to_record_an_end(
    new_stack: NewStack, own_postgres: Callable[[], PostgresServer]
) -> None:
    server = own_postgres()
    env = {"JOBS_OUTAGE_PATIENCE_SECONDS": "0.3", "JOBS_WORKER_TIMEOUT_SECONDS": "4"}
    stack = new_stack(PREFORK, slots=1, DATABASE_URL=server.new_database(migrate), **env).start()
    name = stack.name()
    job = stack.jobs.submit("hold", name=name)
    stack.jobs.wait(job, "running")
    server.stop()
    stack.journal.release(name)
    stack.workers[0].wait_for_log(f"the end of job {job} could not be recorded", 30)
    server.start()
    ended = wait_until(lambda: stack.jobs.wait(job), "the job ends", 60, ignore=(AssertionError, httpx.HTTPError))
    assert (ended["status"], str(ended["error"]).partition(":")[0]) == ("failed", "WorkerLost")


@pytest.mark.slow
def test_queues_are_what_a_worker_serves(new_stack: NewStack) -> None:
    stack = new_stack(SQLITE).start(worker=False)
    job = stack.jobs.submit("note")
    other = stack.worker("--queues", "other, another")
    assert re.search(r"\bother\b", other.log)
    assert stack.jobs.status(job) == "pending"
    stack.worker("-Q", "jobs")
    stack.jobs.wait(job, "completed")


def test_the_data_folder_of_migrate_is_that_of_the_service(new_service: NewService) -> None:
    service = new_service()
    assert service.run("migrate", "--data-dir", "there").stdout == "The database is up to date.\n"
    assert (service.folder / "there" / "jobs.db").exists()


@pytest.mark.slow
def test_a_worker_serves_its_metrics_at_the_address_given(new_stack: NewStack) -> None:
    stack = new_stack(SQLITE).start(worker=False)
    worker = stack.worker(JOBS_METRICS_PORT="0", JOBS_METRICS_HOST="127.0.0.2")
    worker.wait_for_log("Serving metrics on http://127.0.0.2:", 30)
    match = re.search(r"Serving metrics on (\S+)", worker.log)
    assert match is not None
    assert httpx.get(match[1]).status_code == 200


@pytest.mark.parametrize(
    ("env", "says"),
    [
        ({"JOBS_PRT": "1"}, "JOBS_PORT"),
        ({"JOBS_WORKER_TIMEOUT_SECONDS": "soon"}, "JOBS_WORKER_TIMEOUT_SECONDS"),
        ({"JOBS_API_KEYS": "{"}, "JOBS_API_KEYS"),
        ({"JOBS_IMPORTS": "no_such_module"}, "no_such_module"),
        ({"DATABASE_URL": "mysql://host/name"}, "postgresql://"),
        ({}, "celery-jobs migrate"),
        ({"DATABASE_URL": "postgresql://nobody@127.0.0.1:1/nothing"}, "not reachable"),
    ],
)
def test_celerys_own_command_says_in_plain_words_what_is_wrong(
    new_service: NewService, processes: Processes, redis_server: RedisServer, env: dict[str, str], says: str
) -> None:
    service = new_service(CELERY_BROKER_URL=redis_server.new_database(), **env)
    command = [CELERY, "-A", "celery_jobs.tasks", "worker"]
    process = processes.start(command, name="celery", env=service.env, cwd=service.folder)
    assert process.wait(60) != 0
    assert says in process.log
    assert "Traceback" not in process.log

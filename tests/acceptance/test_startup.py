"""What cannot start says what to do, exits with 2, and leaves nothing half done (contract, section 9)."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Callable, Iterator

import pytest

from tests.support.ports import free_port
from tests.support.postgres import PostgresServer
from tests.support.redis import RedisServer
from tests.support.service import Service
from tests.support.stack import EMBEDDED, Stack

NewService = Callable[..., Service]

CANNOT_START = 2


def refused(service: Service, *args: str, says: tuple[str, ...], **env: str) -> str:
    """What it wrote; it must end with 2, name these things, and make nothing."""
    before = sorted(service.folder.iterdir())
    ended = service.run(*args, timeout=40.0, **env)
    told = ended.stdout + ended.stderr
    assert ended.returncode == CANNOT_START, told
    assert "Traceback" not in told
    for word in says:
        assert word in told
    made = [path.name for path in service.folder.iterdir() if path not in before and path.name != "__pycache__"]
    assert made == [], f"half done: {made}"
    return told


def up(service: Service, *, says: tuple[str, ...], **env: str) -> str:
    return refused(service, "up", "--port", str(free_port()), says=says, **env)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("JOBS_MAX_CONCURRENCY", "0"),
        ("JOBS_WORKER_TIMEOUT_SECONDS", "0"),
        ("JOBS_WORKER_TIMEOUT_SECONDS", "soon"),
        ("JOBS_SHUTDOWN_TIMEOUT_SECONDS", "-1"),
        ("JOBS_API_KEYS", "{"),
        ("JOBS_API_KEYS", "/nosuch/file"),
        ("JOBS_API_KEYS", '{"k": {"identity": "a", "scopes": ["write"]}}'),
        ("DATABASE_URL", "mysql://localhost/jobs"),
        ("DATABASE_URL", "nonsense"),
    ],
)
def test_a_bad_setting_is_named(new_service: NewService, name: str, value: str) -> None:
    up(new_service(), says=(name,), **{name: value})


def test_an_unknown_kind_of_database_is_named_with_what_can_be_used(new_service: NewService) -> None:
    up(new_service(), says=("mysql", "postgresql", "sqlite"), DATABASE_URL="mysql://user:secret@localhost/jobs")


def test_a_password_is_not_shown(new_service: NewService) -> None:
    assert "secret" not in up(new_service(), says=(), DATABASE_URL="mysql://user:secret@localhost/jobs")


def test_a_misspelt_setting_is_told_with_the_near_one(new_service: NewService) -> None:
    up(new_service(), says=("JOBS_MAX_CONCURENCY", "JOBS_MAX_CONCURRENCY"), JOBS_MAX_CONCURENCY="3")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_an_address_that_others_can_reach_is_refused(new_service: NewService, host: str) -> None:
    refused(new_service(), "up", "--host", host, "--port", str(free_port()), says=("--insecure",))


def test_a_port_out_of_range_is_refused(new_service: NewService) -> None:
    refused(new_service(), "up", "--port", "65536", says=("65535",))
    up_by_setting = new_service()
    refused(up_by_setting, "up", says=("JOBS_PORT",), JOBS_PORT="http")


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", free_port()))
        holder.listen()
        yield holder.getsockname()[1]


def test_a_port_in_use_is_named(new_service: NewService, taken_port: int) -> None:
    refused(new_service(), "up", "--port", str(taken_port), says=(str(taken_port), "in use"))


@pytest.mark.slow
def test_a_data_folder_that_cannot_be_made_is_named(new_service: NewService) -> None:
    service = new_service()
    (service.folder / "file").write_text("not a folder")
    up(service, says=("JOBS_DATA_DIR", "file/data"), JOBS_DATA_DIR=str(service.folder / "file" / "data"))
    up(service, says=("JOBS_DATA_DIR",), JOBS_DATA_DIR="/proc/nosuch")


@pytest.mark.slow
def test_a_data_folder_in_use_is_named_with_who_holds_it(new_service: NewService) -> None:
    service = new_service(JOBS_SHUTDOWN_TIMEOUT_SECONDS="1")
    first = service.up()
    told = up(service, says=(".celery-jobs",))
    assert str(first.process.pid) in told
    assert first.client.get("/readyz").status_code == 200
    assert first.client.post("/api/v1/compute", json={"duration": 0.1}).status_code == 202


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (None, ("JOBS_IMPORTS", "shop_tasks")),
        ("import nosuch_module", ("JOBS_IMPORTS", "shop_tasks", "nosuch_module")),
        ("raise RuntimeError('not today')", ("JOBS_IMPORTS", "shop_tasks", "not today")),
        ("def broken(:", ("JOBS_IMPORTS", "shop_tasks")),
    ],
)
def test_a_module_that_cannot_be_imported_is_named(
    new_service: NewService, source: str | None, says: tuple[str, ...]
) -> None:
    service = new_service(JOBS_IMPORTS="shop_tasks")
    if source is not None:
        service.module("shop_tasks", source)
    up(service, says=says)


def test_a_worker_names_a_module_that_cannot_be_imported(
    new_service: NewService, redis_server: RedisServer, postgres_server: PostgresServer
) -> None:
    env = {"CELERY_BROKER_URL": redis_server.new_database(), "DATABASE_URL": postgres_server.new_database()}
    service = new_service(**env)
    assert service.run("migrate").returncode == 0
    for command in (("worker",), ("api", "--port", str(free_port()))):
        refused(service, *command, says=("JOBS_IMPORTS", "shop_tasks"), JOBS_IMPORTS="shop_tasks")


def test_a_database_without_tables_is_told_to_be_migrated(
    new_service: NewService, redis_server: RedisServer, postgres_server: PostgresServer
) -> None:
    env = {"CELERY_BROKER_URL": redis_server.new_database(), "DATABASE_URL": postgres_server.new_database()}
    service = new_service(**env)
    for command in (("api", "--port", str(free_port())), ("worker",)):
        refused(service, *command, says=("celery-jobs migrate",))
    assert service.run("migrate").returncode == 0
    assert service.run("migrate").returncode == 0, "again is fine"
    assert service.api().client.get("/readyz").status_code == 200


def test_a_worker_without_a_broker_is_told_so(new_service: NewService) -> None:
    refused(new_service(), "worker", says=("CELERY_BROKER_URL",))


@pytest.mark.parametrize("args", [("nosuch",), ("up", "--nosuch")])
def test_an_unknown_command_or_option_is_refused(new_service: NewService, args: tuple[str, ...]) -> None:
    refused(new_service(), *args, says=("nosuch",))


def test_every_command_explains_itself(new_service: NewService) -> None:
    service = new_service()
    for command in ("up", "api", "worker", "migrate"):
        ended: subprocess.CompletedProcess[str] = service.run(command, "--help")
        assert ended.returncode == 0
        assert "--help" in ended.stdout


def test_the_embedded_service_says_in_its_log_which_job_failed_and_where(start_stack: Callable[..., Stack]) -> None:
    stack = start_stack(EMBEDDED)
    job = stack.jobs.submit("raising", text="no such luck")
    stack.jobs.wait(job, "failed")
    stack.process.wait_for_log(f"[{job}]")
    stack.process.wait_for_log("ValueError: no such luck")
    assert "sample.raising" in stack.process.log

"""What cannot start says in one paragraph what to do, exits with 2, and leaves nothing behind."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.ports import free_port
from tests.support.service import Service

NewService = Callable[..., Service]
NOWHERE = "redis://127.0.0.1:1/0"
KEYS = json.dumps({"secret-of-alice": {"identity": "alice"}})


@pytest.mark.parametrize(
    ("command", "env", "says"),
    [
        ("up", {"JOBS_PRT": "1"}, "JOBS_PORT"),
        ("up", {"JOBS_PORT": "eighty"}, "JOBS_PORT"),
        ("up", {"JOBS_MAX_CONCURRENCY": "0"}, "JOBS_MAX_CONCURRENCY"),
        ("worker", {"LOG_LEVEL": "LOUD", "CELERY_BROKER_URL": NOWHERE}, "LOG_LEVEL"),
        ("up", {"DATABASE_URL": "mysql://host/name"}, "mysql"),
        ("migrate", {"DATABASE_URL": "mysql://host/name"}, "postgresql://"),
        ("api", {"CELERY_BROKER_URL": NOWHERE}, "celery-jobs migrate"),
        ("up", {"JOBS_IMPORTS": "no_such_module"}, "no_such_module"),
        ("up", {"JOBS_API_KEYS": "no-such-file"}, "JOBS_API_KEYS"),
        ("worker", {}, "CELERY_BROKER_URL"),
        ("api --workers 2", {}, "CELERY_BROKER_URL"),
        ("up --host 0.0.0.0", {}, "--insecure"),
        ("api --host 0.0.0.0", {"CELERY_BROKER_URL": NOWHERE}, "JOBS_API_KEYS"),
        ("up --host ::", {}, "--insecure"),
        ("up --host 192.0.2.1", {"JOBS_INSECURE": "true"}, "--host"),
        ("up --host no.such.host.invalid", {}, "--host"),
    ],
)
def test_a_wrong_setting_is_named(new_service: NewService, command: str, env: dict[str, str], says: str):
    service = new_service(JOBS_PORT=str(free_port())) if "JOBS_PORT" not in env else new_service()
    service.env.update(env)
    ended = service.run(*command.split())
    assert_told(ended.returncode, ended.stderr, says)


def test_a_port_in_use_stops_the_start_before_anything_is_made(new_service: NewService):
    service = new_service()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = service.run("up", "--port", str(port))
    assert_told(ended.returncode, ended.stderr, f"Port {port}")
    assert list(service.folder.iterdir()) == []


def test_a_data_folder_that_cannot_be_made_is_named(new_service: NewService, tmp_path: Path):
    (tmp_path / "file").write_text("")
    ended = new_service().run("up", "--port", str(free_port()), "--data-dir", str(tmp_path / "file" / "folder"))
    assert_told(ended.returncode, ended.stderr, "--data-dir")


def test_a_data_folder_in_use_names_its_holder(new_service: NewService):
    service = new_service(JOBS_SHUTDOWN_TIMEOUT_SECONDS="0.5")
    first = service.up()
    ended = service.run("up", "--port", str(free_port()))
    assert_told(ended.returncode, ended.stderr, f"process {first.process.pid}")
    assert first.client.get("/readyz").status_code == 200


def test_a_key_is_no_part_of_a_message(new_service: NewService):
    ended = new_service().run("up", JOBS_API_KEYS=KEYS.replace('"alice"', "3"))
    assert_told(ended.returncode, ended.stderr, "JOBS_API_KEYS")
    assert "secret-of-alice" not in ended.stderr


def test_with_keys_any_address_may_be_served(new_service: NewService):
    service = new_service(JOBS_API_KEYS=KEYS)
    served = service.up("--host", "0.0.0.0", ready=False)
    served.wait_ready()
    assert served.client.get("/api/v1/jobs").status_code == 401
    assert served.client.get("/api/v1/jobs", headers={"X-API-Key": "secret-of-alice"}).json() == []


def test_options_win_over_the_environment(new_service: NewService):
    service = new_service(JOBS_PORT="1", JOBS_DATA_DIR="/dev/null/x", JOBS_HOST="192.0.2.1")
    served = service.up("--data-dir", "here")
    assert served.client.get("/livez").status_code == 200
    assert (service.folder / "here" / "jobs.db").exists()


def assert_told(code: int, stderr: str, says: str) -> None:
    assert code == 2, stderr
    assert says in stderr
    assert "Traceback" not in stderr
    assert len(stderr.strip().splitlines()) == 1, stderr

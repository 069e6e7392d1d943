"""An application that is not ours mounts the second API: the example, in processes on both databases (section 8)."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import httpx
import pytest

from tests.support.postgres import PostgresServer
from tests.support.proxy import Proxy
from tests.support.remote_host import Client, Host, Pair, problem, seconds_of, token_maker
from tests.support.waiting import wait_until

pytestmark = pytest.mark.xdist_group("remote-host")
KINDS = ("sqlite", "postgresql")
CLAIMERS = 40
WORKER_TIMEOUT_SECONDS = 2.0
ANGLE = {"type": "object", "properties": {"angle": {"type": "number"}}, "required": ["angle"]}
Token = Callable[[str, bool], str]


@pytest.fixture(scope="module")
def token() -> Token:
    return token_maker()


@pytest.fixture(scope="module", params=KINDS)
def hosts(
    request: pytest.FixtureRequest, new_host: Callable[..., Host], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Host, Host]:
    """Two on one database; the first sweeps by itself, the second asks itself over HTTP."""
    if request.param == "sqlite":
        url = f"sqlite+aiosqlite:///{tmp_path_factory.mktemp('database') / 'host.db'}"
    else:
        server: PostgresServer = request.getfixturevalue("postgres_server")
        url = server.new_database().replace("postgresql:", "postgresql+psycopg:")
    # started at the same moment, so that both make the tables
    both = new_host(DATABASE_URL=url), new_host(app="bare:beside", DATABASE_URL=url, INTERNAL_API_URL="{own url}")
    for each in both:
        each.wait_ready()
    return both


@pytest.fixture
def pair(hosts: tuple[Host, Host], token: Token) -> Pair:
    return Pair(hosts, token, uuid4().hex[:8])


def test_a_task_goes_its_way(pair: Pair) -> None:
    worker, user = pair.of("worker"), pair.of("user", 1)
    assert worker.http.get("/v1/me", headers=worker.headers).json() == {"id": f"worker-{pair.room}"}
    asked = {"category": "modifiers", "name": "Rotate", "schema": ANGLE}
    job = worker.call("PUT", f"/rooms/{pair.room}/jobs", 201, json=asked).json()
    assert worker.call("PUT", f"/rooms/{pair.room}/jobs", 200, json=asked).json() == job
    assert (job["schema"], job["workers"]) == (ANGLE, [f"worker-{pair.room}"])
    path = f"/rooms/{pair.room}/tasks/{job['full_name']}"
    submitted = user.call("POST", path, 202, json={"payload": {"angle": 90}})
    task = submitted.json()
    assert submitted.headers["location"] == f"/v1/joblib/tasks/{task['id']}"
    assert (task["status"], task["queue_position"], task["created_by_id"]) == ("pending", 1, f"user-{pair.room}")
    claimed = worker.claim()
    assert claimed is not None
    assert (claimed["id"], claimed["payload"], claimed["status"]) == (task["id"], {"angle": 90}, "claimed")
    assert worker.claim() is None
    worker.say(task["id"], "running")
    summary = f"/rooms/{pair.room}/summary"
    assert worker.http.get(summary).json() == {"running": 1}
    worker.say(task["id"], "completed", result={"atoms": 12})
    ended = user.task(task["id"], wait=5)
    assert (ended["status"], ended["result"], ended["worker_id"]) == ("completed", {"atoms": 12}, claimed["worker_id"])
    assert worker.http.get(summary).json() == {"completed": 1}


def test_a_waiting_claim_is_woken_at_once_in_its_process(pair: Pair) -> None:
    worker, user = pair.of("worker"), pair.of("user")
    worker.register(pair.room)
    # five times, since a look a second might come at the right moment once
    assert sum(_seconds_to_claim(worker, user, pair.room) for _ in range(5)) < 1.25


def test_a_waiting_claim_hears_of_other_processes_within_a_second(pair: Pair) -> None:
    worker, user = pair.of("worker"), pair.of("user", 1)
    worker.register(pair.room)
    assert max(_seconds_to_claim(worker, user, pair.room) for _ in range(2)) < 1 + 1  # and a busy machine


def _seconds_to_claim(worker: Client, user: Client, room: str) -> float:
    before = _heard_of(user, room)
    with ThreadPoolExecutor(1) as waiting:
        claim = waiting.submit(worker.claim, 20)
        wait_until(lambda: _heard_of(user, room) != before, "the claim waits")
        task, began = user.submit(room), time.monotonic()
        claimed = claim.result()
    assert claimed is not None
    assert claimed["id"] == task
    return time.monotonic() - began


def _heard_of(client: Client, room: str) -> list[str]:
    workers = client.call("GET", f"/rooms/{room}/workers?limit=1000", 200).json()["items"]
    return [each["last_heartbeat"] for each in workers]


def test_a_claim_whose_client_left_takes_nothing(pair: Pair) -> None:
    worker, user = pair.of("worker"), pair.of("user")
    worker.register(pair.room)
    before = _heard_of(user, pair.room)
    with pytest.raises(httpx.ReadTimeout):
        worker.http.post(f"{worker.url}/tasks/claim", headers=worker.headers | {"Prefer": "wait=20"}, timeout=0.3)
    assert _heard_of(user, pair.room) != before
    task = user.submit(pair.room)
    claimed = worker.claim()
    assert claimed is not None
    assert claimed["id"] == task


def test_of_forty_claimers_each_takes_one_task_and_one_takes_the_last(pair: Pair) -> None:
    workers = [pair.of(f"worker{number}", number % 2) for number in range(CLAIMERS)]
    users = pair.of("user"), pair.of("user", 1)
    with ThreadPoolExecutor(CLAIMERS) as at_once:
        list(at_once.map(lambda worker: worker.register(pair.room), workers))
        before = _heard_of(users[0], pair.room)
        claims = [at_once.submit(worker.claim, 20) for worker in workers]
        wait_until(lambda: not set(before) & set(_heard_of(users[0], pair.room)), "all wait", interval=0.2)
        # whoever waits holds no connection, of which the host's pool has fewer than there are claims
        assert seconds_of(lambda: users[0].call("GET", "/workers", 200)) < 2
        submitted = [users[number % 2].submit(pair.room) for number in range(CLAIMERS)]
        claimed = Counter(task["id"] for claim in claims if (task := claim.result()) is not None)
        assert claimed == Counter(submitted)
        last = users[0].submit(pair.room)
        won = [task["id"] for task in at_once.map(Client.claim, workers) if task is not None]
    assert won == [last]


def test_a_cancelled_task_is_told_to_its_worker_and_its_report_refused(pair: Pair) -> None:
    worker, user, stranger = pair.of("worker"), pair.of("user"), pair.of("stranger", 1)
    me = worker.register(pair.room)["workers"][0]
    task = user.submit(pair.room)
    worker.claim()
    worker.say(task, "running")
    problem(stranger.call("PATCH", f"/tasks/{task}", 403, json={"status": "cancelled"}), "forbidden")
    problem(stranger.call("PATCH", f"/tasks/{task}", 403, json={"status": "completed"}), "forbidden")
    with ThreadPoolExecutor(1) as waiting:
        end = waiting.submit(stranger.task, task, 20)
        assert user.say(task, "cancelled")["status"] == "cancelled"
        assert end.result()["status"] == "cancelled"
    assert worker.beat(me)["cancelled_task_ids"] == [task]
    late = worker.call("PATCH", f"/tasks/{task}", 409, json={"status": "completed"})
    problem(late, "invalid-task-transition")
    assert worker.beat(me)["cancelled_task_ids"] == []
    problem(stranger.call("PATCH", f"/workers/{me}", 403), "forbidden")


def test_a_worker_that_goes_gives_back_what_it_claimed_and_fails_what_it_runs(pair: Pair) -> None:
    worker, user = pair.of("worker"), pair.of("user", 1)
    me = worker.register(pair.room)["workers"][0]
    other = worker.call("POST", "/workers", 201).json()["id"]
    worker.register(pair.room, worker_id=other)
    running, claimed = user.submit(pair.room), user.submit(pair.room)
    for task in (running, claimed):
        taken = worker.claim()
        assert taken is not None
        assert taken["id"] == task
    worker.say(running, "running")
    with ThreadPoolExecutor(1) as waiting:
        again = waiting.submit(worker.claim, 20, worker_id=other)
        worker.call("DELETE", f"/workers/{me}", 204)
        taken = again.result()
    assert taken is not None
    assert (taken["id"], taken["worker_id"]) == (claimed, other)
    failed = user.task(running)
    assert failed["status"] == "failed"
    assert failed["error"].startswith("WorkerLost: ")
    problem(worker.call("PATCH", f"/workers/{me}", 404), "worker-not-found")
    worker.say(claimed, "running", worker_id=other)
    worker.say(claimed, "completed", worker_id=other)
    worker.call("DELETE", f"/workers/{other}", 204)
    problem(user.call("GET", f"/rooms/{pair.room}/jobs/{pair.room}:modifiers:Rotate", 404), "job-not-found")


@pytest.fixture(scope="module", params=KINDS)
def quick(request: pytest.FixtureRequest, new_host: Callable[..., Host]) -> Iterator[tuple[Host, Proxy | None]]:
    """A host whose workers may be silent for a moment only: it sweeps by itself, or asks itself over HTTP."""
    env = {
        "ZNDRAW_JOBLIB_WORKER_TIMEOUT_SECONDS": str(WORKER_TIMEOUT_SECONDS),
        "ZNDRAW_JOBLIB_SWEEPER_INTERVAL_SECONDS": "0.5",
    }
    if request.param == "sqlite":
        file = request.getfixturevalue("tmp_path_factory").mktemp("quick") / "host.db"
        host = new_host(DATABASE_URL=f"sqlite+aiosqlite:///{file}", INTERNAL_API_URL="{own url}", **env)
        host.wait_ready()
        yield host, None
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    with Proxy(server.port).serving() as proxy:
        url = (
            server.new_database()
            .replace("postgresql:", "postgresql+psycopg:")
            .replace(f":{server.port}", f":{proxy.port}")
        )
        host = new_host(DATABASE_URL=url, **env)
        host.wait_ready()
        yield host, proxy


def test_a_silent_worker_is_swept_and_a_beating_one_is_not(quick: tuple[Host, Proxy | None], token: Token) -> None:
    host = quick[0]
    silent, beating = (host.client(token(name, False)) for name in ("silent", "beating"))
    silent.register("quick", name="Silent")
    beating.register("quick", name="Beating")
    lost, kept = beating.submit("quick", name="Silent"), beating.submit("quick", name="Beating")
    for worker, task in ((silent, lost), (beating, kept)):
        worker.claim()
        worker.say(task, "running")

    def swept() -> bool:
        beating.beat("beating")
        return beating.task(lost)["status"] == "failed"

    took = seconds_of(lambda: wait_until(swept, "the silent worker is swept", interval=0.1))
    assert took > WORKER_TIMEOUT_SECONDS / 2
    assert beating.task(lost)["error"].startswith("WorkerLost: ")
    assert beating.task(kept)["status"] == "running"
    problem(silent.call("POST", "/tasks/claim", 404), "worker-not-found")
    # a claimed task that nobody reports goes back, too
    task = beating.submit("quick", name="Beating")
    beating.claim()

    def returned() -> bool:
        beating.beat("beating")
        return beating.task(task)["status"] == "pending"

    wait_until(returned, "the claim goes back", interval=0.1)


@pytest.mark.parametrize("quick", ["postgresql"], indirect=True)
def test_a_database_that_is_away_is_a_503_and_works_again(quick: tuple[Host, Proxy | None], token: Token) -> None:
    host, proxy = quick
    assert proxy is not None
    worker = host.client(token("worker", False))
    worker.register("away")
    task = worker.submit("away")
    proxy.cut()  # a restart: the connections of the pool are broken, new ones work
    assert worker.task(task)["status"] == "pending"
    proxy.refuse()
    for method, path in (("GET", f"/tasks/{task}"), ("POST", "/tasks/claim"), ("PATCH", "/workers/worker")):
        answer = worker.call(method, path, 503)
        assert "psycopg" not in problem(answer, "unavailable")["detail"]
        assert int(answer.headers["retry-after"]) > 0
    proxy.accept()
    worker.register("away")
    claimed = worker.claim()
    assert claimed is not None
    assert claimed["id"] == task


def test_without_an_identity_and_without_keys_nobody_may_call(hosts: tuple[Host, Host]) -> None:
    nobody = hosts[1].client(prefix="/nobody")
    for method, path in (("GET", "/workers"), ("POST", "/tasks/claim"), ("DELETE", "/workers/alice")):
        answer = nobody.call(method, path, 401)
        assert "get_current_identity" in problem(answer, "unauthorized")["detail"]
        assert answer.headers["www-authenticate"].startswith("Bearer")

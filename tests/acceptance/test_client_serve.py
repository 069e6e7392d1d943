"""Workers that serve, in processes of their own: the command, signals, heartbeats, cancelling (contract, section 8)."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import BaseModel

from celery_jobs.client import ClaimedTask, JobManager, SubmittedTask
from tests.support.processes import Processes
from tests.support.sdk import SdkWorkers, forget_workers, fresh, task_seen, workers_seen
from tests.support.sdk_tasks import Double, Hold
from tests.support.stack import EMBEDDED, Stack
from tests.support.waiting import stays, wait_until

pytestmark = pytest.mark.xdist_group("client-serve")

TIMEOUT_SECONDS = 2.0
SECONDS = 5  # "in seconds": a deadline with slack
BEAT = ("--heartbeat-interval", "0.3")


@pytest.fixture(scope="module")
def served(start_stack: Callable[..., Stack]) -> Stack:
    """A service that soon takes a silent worker for dead."""
    return start_stack(
        EMBEDDED,
        ZNDRAW_JOBLIB_WORKER_TIMEOUT_SECONDS=str(TIMEOUT_SECONDS),
        ZNDRAW_JOBLIB_SWEEPER_INTERVAL_SECONDS="0.3",
    )


@pytest.fixture
def client(served: Stack) -> httpx.Client:
    """A client of the service, which knows no worker."""
    forget_workers(served.apis[0].client)
    return served.apis[0].client


@pytest.fixture
def url(served: Stack) -> str:
    return served.apis[0].url


@pytest.fixture
def sdk(served: Stack, processes: Processes, tmp_path: Path) -> SdkWorkers:
    """Starts workers in a folder of the test's own."""
    return SdkWorkers(processes, tmp_path, served.service.env)


@pytest.fixture
def jobs(url: str) -> Iterator[JobManager]:
    """A submitter."""
    with JobManager(url) as jobs:
        yield jobs


def submit_hold(jobs: JobManager, held: Hold) -> SubmittedTask:
    return jobs.submit(held, room="room_1", job_room="room_1")


def test_the_command_serves_what_a_module_offers(
    client: httpx.Client, sdk: SdkWorkers, url: str, jobs: JobManager
) -> None:
    worker = sdk.command(url)
    (offered,) = workers_seen(client).values()
    assert offered == ["@global:modifiers:Double", "room_1:analysis:Hold"]
    assert jobs.submit(Double(number=21), room="anywhere").wait(10).result == 42
    worker.terminate()
    assert worker.wait(SECONDS) == 0
    assert workers_seen(client) == {}
    assert "Traceback" not in worker.log


def test_each_task_runs_once_whatever_the_number_of_workers(
    client: httpx.Client, sdk: SdkWorkers, url: str, jobs: JobManager
) -> None:
    for _ in range(3):
        sdk.command(url)
    submitted = [jobs.submit(Double(number=number), room="room_1") for number in range(60)]
    assert [task.wait(20).result for task in submitted] == [2 * number for number in range(60)]
    assert sorted(sdk.runs_of_double()) == list(range(60))


def test_the_command_serves_classes_by_name_in_a_room(
    client: httpx.Client, sdk: SdkWorkers, url: str, jobs: JobManager
) -> None:
    (sdk.folder / "bare.py").write_text(
        "from pydantic import BaseModel\n"
        "class Bare(BaseModel):\n    def run(self):\n        return 'bare'\n"
        "class Other(BaseModel):\n    pass\n"
    )
    sdk.command(url, "bare:Bare", "--room", "room_2")
    assert list(workers_seen(client).values()) == [["room_2:modifiers:Bare"]]
    bare = type("Bare", (BaseModel,), {"__module__": __name__})
    assert jobs.submit(bare(), room="room_2", job_room="room_2").wait(10).result == "bare"


def test_a_name_is_served_and_nothing_else(client: httpx.Client, sdk: SdkWorkers, url: str) -> None:
    sdk.command(url, "sdk_tasks:Hold")
    assert list(workers_seen(client).values()) == [["room_1:analysis:Hold"]]


def test_the_command_takes_its_url_from_the_environment(sdk: SdkWorkers, url: str, client: httpx.Client) -> None:
    source = "import sys\nfrom celery_jobs.client.__main__ import main\nsys.exit(main(['sdk_tasks']))\n"
    sdk.script(source, JOBS_URL=url)
    assert len(workers_seen(client)) == 1


def test_the_command_says_what_the_server_refuses(sdk: SdkWorkers, url: str) -> None:
    (sdk.folder / "odd.py").write_text(
        "from typing import ClassVar\nfrom pydantic import BaseModel\n"
        "class Odd(BaseModel):\n    category: ClassVar[str] = 'nonsense'\n"
    )
    worker = sdk.command(url, "odd:Odd", ready=False)
    assert worker.wait() == 2
    assert "cannot start:" in worker.log
    assert "nonsense" in worker.log
    assert "Traceback" not in worker.log


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_idle_worker_ends_at_once(sdk: SdkWorkers, url: str, client: httpx.Client, number: signal.Signals) -> None:
    worker = sdk.command(url)
    told = time.monotonic()
    worker.send(number)
    assert worker.wait(SECONDS) == 0
    assert time.monotonic() - told < 2
    assert workers_seen(client) == {}


def test_the_first_signal_lets_the_running_task_end(
    client: httpx.Client, sdk: SdkWorkers, url: str, jobs: JobManager
) -> None:
    worker, held, later = sdk.command(url, *BEAT), sdk.hold(), sdk.hold()
    running = submit_hold(jobs, held)
    sdk.wait_began(held)
    waiting = submit_hold(jobs, later)
    worker.interrupt()
    worker.interrupt()  # a moment later: from the terminal and from a parent process, and one wish
    worker.wait_for_log("a second signal ends it at once")
    stays(lambda: running.refresh().status == "running", "the task runs on", 1.5)
    sdk.release(held)
    assert worker.wait(SECONDS) == 0
    assert running.refresh().result == held.name
    assert waiting.refresh().status == "pending"
    assert workers_seen(client) == {}
    waiting.cancel()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_second_signal_ends_it_at_once_and_fails_the_task(
    sdk: SdkWorkers, url: str, jobs: JobManager, client: httpx.Client, number: signal.Signals, code: int
) -> None:
    worker, held = sdk.command(url, *BEAT), sdk.hold()
    running = submit_hold(jobs, held)
    sdk.wait_began(held)
    worker.send(number)
    time.sleep(1.1)  # signals within a second are one wish
    worker.send(number)
    assert worker.wait(SECONDS) == code
    assert running.refresh().status == "failed"
    assert running.error is not None
    assert "the worker ended while the task ran" in running.error
    assert workers_seen(client) == {}


def test_a_task_may_run_for_longer_than_the_server_waits_for_a_sign_of_life(
    client: httpx.Client, sdk: SdkWorkers, url: str, jobs: JobManager
) -> None:
    sdk.command(url, *BEAT)
    held = sdk.hold()
    running = submit_hold(jobs, held)
    sdk.wait_began(held)
    (before,) = workers_seen(client)
    stays(lambda: running.refresh().status == "running", "the task runs", TIMEOUT_SECONDS * 2)
    sdk.release(held)
    assert running.wait(10).status == "completed"
    assert set(workers_seen(client)) == {before}


def test_a_worker_that_waits_for_long_stays_known(sdk: SdkWorkers, url: str, client: httpx.Client) -> None:
    sdk.command(url, "--heartbeat-interval", "1000")
    (before,) = workers_seen(client)
    stays(lambda: set(workers_seen(client)) == {before}, "the worker is known", TIMEOUT_SECONDS * 2)


LISTENS = """
import sys
from pydantic import BaseModel
from celery_jobs.client import JobManager

jobs = JobManager(sys.argv[1])

@jobs.register
class Silent(BaseModel):
    pass

print("taking tasks", flush=True)
for task in jobs.listen():
    jobs.start(task)
    while True:
        pass
"""


def test_a_worker_without_heartbeats_loses_its_task(
    client: httpx.Client, sdk: SdkWorkers, url: str, jobs: JobManager
) -> None:
    sdk.script(LISTENS, url)
    silent = type("Silent", (BaseModel,), {"__module__": __name__})
    task = jobs.submit(silent(), room="room_1").wait(TIMEOUT_SECONDS + 10)
    assert task.status == "failed"
    assert workers_seen(client) == {}


def test_a_handler_hears_of_a_cancel_and_the_worker_goes_on(jobs: JobManager, url: str) -> None:
    made = fresh(BaseModel)
    seen: list[tuple[str, bool]] = []

    def handle(task: ClaimedTask) -> None:
        worker.start(task)
        if task.id == first.id:
            first.cancel()
            wait_until(lambda: task.cancel_requested, "the heartbeat tells")
        seen.append((task.id, task.cancel_requested))
        worker.complete(task, "done")  # refused for the first, which raises

    with JobManager(url) as worker:
        worker.register(made)
        first, second = jobs.submit(made(), room="room_1"), jobs.submit(made(), room="room_1")
        thread = threading.Thread(target=lambda: worker.serve(handle, heartbeat_interval=0.2))
        thread.start()
        assert second.wait(20).result == "done"
        worker.stop()
        thread.join(SECONDS)
        assert not thread.is_alive()
    assert seen == [(first.id, True), (second.id, False)]
    assert first.refresh().status == "cancelled"


def test_what_a_handler_raises_fails_its_task_and_nothing_else(
    jobs: JobManager, url: str, client: httpx.Client
) -> None:
    made = fresh(BaseModel)

    def handle(task: ClaimedTask) -> None:
        if task.id == first.id:
            raise RuntimeError("no")
        worker.complete(task)

    with JobManager(url) as worker:
        worker.register(made)
        first, second = jobs.submit(made(), room="room_1"), jobs.submit(made(), room="room_1")
        thread = threading.Thread(target=lambda: worker.serve(handle))
        thread.start()
        assert second.wait(20).status == "completed"
        assert first.refresh().error == "RuntimeError: no"
        worker.close()
        thread.join(SECONDS)
        assert not thread.is_alive()
    assert workers_seen(client) == {}


class Slow(BaseModel):
    number: int

    def run(self) -> int:
        time.sleep(0.1)
        return self.number


def test_threads_may_serve_as_one_worker(jobs: JobManager, url: str, client: httpx.Client) -> None:
    made = fresh(Slow)
    with JobManager(url) as worker:
        worker.register(made)
        threads = [threading.Thread(target=worker.serve) for _ in range(3)]
        for thread in threads:
            thread.start()
        submitted = [jobs.submit(made(number=number), room="room_1") for number in range(9)]
        assert [task.wait(20).result for task in submitted] == list(range(9))
        assert list(workers_seen(client)) == [worker.worker_id]
        worker.stop()
        for thread in threads:
            thread.join(SECONDS)
            assert not thread.is_alive()
        assert workers_seen(client) == {}


def test_serve_in_the_main_thread_gives_signals_back(url: str) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with JobManager(url) as worker:
        threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGTERM)).start()
        worker.serve()
        assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
        made = fresh(Double)  # the manager can be used on
        worker.register(made)
        threading.Timer(0.5, worker.stop).start()
        worker.serve()


@pytest.mark.parametrize("interval", [0, -1, float("nan")])
def test_a_heartbeat_interval_that_is_none_is_refused(url: str, interval: float) -> None:
    with JobManager(url) as worker, pytest.raises(ValueError, match="heartbeats"):
        worker.serve(heartbeat_interval=interval)


DOCUMENTED = """
import sys
import httpx
from celery_jobs.client import JobManager

class Vis:
    def __init__(self, url):
        self.http = httpx.Client()
        self.base_url = url
        self.jobs = JobManager(self)

    def get_headers(self):
        return {}

vis = Vis(sys.argv[1])

from pydantic import BaseModel

# Extension classes are Pydantic BaseModels
class Rotate(BaseModel):
    category: str = "modifiers"  # class attribute for category
    angle: float = 0.0
    axis: str = "z"

# 1. Register jobs
@vis.jobs.register  # @global by default
class Rotate(BaseModel):
    angle: float = 0.0

@vis.jobs.register(room="room_123")
class PrivateRotate(BaseModel):
    angle: float = 0.0

print(len(vis.jobs))  # 2 Jobs Registered
print("taking tasks", flush=True)

# 2. Consume tasks
for task in vis.jobs.listen():
    vis.jobs.heartbeat()  # keep alive during processing
    task.run(vis)
"""


def test_the_documented_example_works_as_printed(
    client: httpx.Client, sdk: SdkWorkers, url: str, jobs: JobManager
) -> None:
    worker = sdk.script(DOCUMENTED, url)
    assert worker.log.splitlines()[0] == "2"
    (offered,) = workers_seen(client).values()
    assert offered == ["@global:modifiers:Rotate", "room_123:modifiers:PrivateRotate"]
    rotate: Any = type(
        "Rotate", (BaseModel,), {"__module__": __name__, "__annotations__": {"angle": float}, "angle": 0.0}
    )
    task = jobs.submit(rotate(angle=90), room="room_123").wait(10)
    assert task_seen(client, task.id)["error"] == "Rotate has no method run"
    worker.interrupt()
    worker.wait(SECONDS)
    assert "KeyboardInterrupt" in worker.log

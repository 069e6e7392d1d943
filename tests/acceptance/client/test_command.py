"""`python -m celery_jobs.client` and the documented example, in processes of their own (contract, section 8)."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from pydantic import BaseModel

from celery_jobs.client import JobManager
from tests.support.sdk import SdkWorkers, task_seen, workers_seen
from tests.support.sdk_tasks import Double

pytestmark = pytest.mark.xdist_group("client-command")

SECONDS = 5  # "in seconds": a deadline with slack


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

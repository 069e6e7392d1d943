"""Registering classes from the SDK, before a running service (contract, section 8)."""

from __future__ import annotations

from typing import ClassVar

import httpx
import pytest
from pydantic import BaseModel

from celery_jobs.client import InvalidCategory, InvalidRoomId, JobManager, SchemaConflict, ValidationFailed
from tests.support.sdk import JOBLIB, Rotate, claimed, fresh, task_seen, workers_seen

pytestmark = pytest.mark.xdist_group("client-registering")


def test_a_manager_is_a_mapping_of_what_it_registered(jobs: JobManager, client: httpx.Client) -> None:
    class Scale(Rotate):
        category: ClassVar[str] = "analysis"

    made, other = fresh(Scale), fresh(Rotate)
    assert jobs.register(made) is made
    assert jobs.register(other, room="room_1") is other
    names = [f"@global:analysis:{made.__name__}", f"room_1:modifiers:{other.__name__}"]
    assert list(jobs) == names
    assert (len(jobs), jobs[names[0]], jobs[names[1]]) == (2, made, other)
    assert names[0] in jobs
    job = client.get(f"{JOBLIB}/rooms/room_1/jobs/{names[1]}").json()
    assert job["schema"] == other.model_json_schema()
    assert job["workers"] == [jobs.worker_id]
    assert workers_seen(client)[jobs.worker_id] == sorted(names)


def test_register_is_a_decorator_with_and_without_a_room(jobs: JobManager) -> None:
    @jobs.register
    class Plain(BaseModel):
        angle: float = 0.0

    @jobs.register(room="room_123")
    class Private(BaseModel):
        category: str = "selections"

    @jobs.register()
    class Empty(BaseModel):
        pass

    names = ["@global:modifiers:Plain", "room_123:selections:Private", "@global:modifiers:Empty"]
    assert dict(jobs) == dict(zip(names, [Plain, Private, Empty], strict=True))


def test_registering_again_is_fine_and_with_another_schema_an_error(jobs: JobManager, url: str) -> None:
    made = fresh(Rotate)
    jobs.register(made)
    jobs.register(made)

    class Other(BaseModel):
        angle: str = "none"

    Other.__name__ = made.__name__
    for manager in (jobs, other := JobManager(url)):
        with pytest.raises(SchemaConflict, match=made.__name__):
            manager.register(Other)
    assert jobs[f"@global:modifiers:{made.__name__}"] is made
    assert len(other) == 0
    other.close()


def test_what_the_server_does_not_allow_is_an_error(jobs: JobManager) -> None:
    class Odd(BaseModel):
        category: ClassVar[str] = "nonsense"

    with pytest.raises(InvalidCategory, match="nonsense") as refused:
        jobs.register(Odd)
    assert refused.value.status == 400
    assert refused.value.type == "/v1/problems/invalid-category"
    with pytest.raises(InvalidRoomId):
        jobs.register(Rotate, room="a:b")
    generic = type("a:b", (Rotate,), {})
    with pytest.raises(ValidationFailed):
        jobs.register(generic)
    assert len(jobs) == 0


def test_each_manager_is_a_worker_of_its_own_until_it_is_closed(url: str, client: httpx.Client) -> None:
    first, second = JobManager(url), JobManager(url)
    ids = {first.worker_id, second.worker_id}
    assert len(ids) == 2
    assert ids <= set(workers_seen(client))
    first.close()
    second.close()
    assert not ids & set(workers_seen(client))


def test_an_api_manager_of_ones_own_is_enough(url: str, client: httpx.Client) -> None:
    class Vis:
        def __init__(self) -> None:
            self.http = httpx.Client(base_url=url)
            self.jobs = JobManager(self)

        def get_headers(self) -> dict[str, str]:
            return {}

        @property
        def base_url(self) -> str:
            return url + "/"

    vis = Vis()
    task = claimed(vis.jobs, Rotate, angle=90)
    task.run("vis")
    assert task_seen(client, task.id)["result"] == [90, "vis"]
    vis.jobs.close()
    assert vis.http.get("/readyz").status_code == 200  # a client that is not the manager's own stays open


def test_registering_after_the_server_forgot_the_worker_registers_all(jobs: JobManager, client: httpx.Client) -> None:
    jobs.register(fresh(Rotate))
    client.delete(f"{JOBLIB}/workers/{jobs.worker_id}").raise_for_status()
    jobs.register(fresh(Rotate))
    assert workers_seen(client)[jobs.worker_id] == sorted(jobs)

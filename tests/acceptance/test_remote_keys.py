"""Who may do what with remote work when there are API keys (contract, sections 8 and 9)."""

from __future__ import annotations

import json
from collections.abc import Callable

import httpx
import pytest

from tests.support.jobs import Jobs, good
from tests.support.remote import PREFIX, Json, Remote, fresh, refused
from tests.support.stack import EMBEDDED, Stack

pytestmark = pytest.mark.xdist_group("remote-keys")

KEYS = {
    "alice-key": {"identity": "alice"},
    "bob-key": {"identity": "bob"},
    "reader-key": {"identity": "reader", "scopes": ["read"]},
    "submitter-key": {"identity": "submitter", "scopes": ["read", "submit"]},
    "canceler-key": {"identity": "submitter", "scopes": ["read", "cancel"]},
    "admin-key": {"identity": "root", "admin": True},
}
PROBLEMS = [
    "job-not-found",
    "schema-conflict",
    "invalid-category",
    "worker-not-found",
    "task-not-found",
    "invalid-task-transition",
    "forbidden",
    "unauthorized",
    "invalid-room-id",
    "payload-invalid",
    "validation-failed",
    "unavailable",
    "too-large",
    "internal",
    "not-found",
    "method-not-allowed",
]
UNKNOWN = "01563e3a-b5d3-d676-4c61-efb99302bd5b"


@pytest.fixture(scope="module")
def keyed(start_stack: Callable[..., Stack]) -> Stack:
    """A service with keys, for all tests of this file."""
    return start_stack(EMBEDDED, worker=False, JOBS_API_KEYS=json.dumps(KEYS))


@pytest.fixture
def room() -> str:
    return fresh()


@pytest.fixture
def who(keyed: Stack, room: str) -> Callable[[str], Remote]:
    """A client with somebody's key, in the test's room."""
    return lambda name: Remote(keyed.apis[0].client, f"{name}-key", room=room)


Who = Callable[[str], Remote]


@pytest.fixture
def alice(who: Who) -> Remote:
    """An extra worker of alice's that serves `Rotate`."""
    worker = who("alice").worker()
    worker.register()
    return worker


@pytest.fixture
def job(alice: Remote) -> str:
    return f"{alice.room}:modifiers:Rotate"


CALLS: list[tuple[str, str, Json | None]] = [
    ("GET", "/rooms/r/jobs", None),
    ("GET", "/rooms/@global/jobs", None),
    ("GET", "/rooms/r/jobs/r:modifiers:Rotate", None),
    ("GET", "/rooms/r/tasks", None),
    ("GET", "/rooms/r/workers", None),
    ("GET", "/workers", None),
    ("GET", f"/tasks/{UNKNOWN}", None),
    ("PUT", "/rooms/r/jobs", {"category": "modifiers", "name": "Rotate"}),
    ("POST", "/rooms/r/tasks/r:modifiers:Rotate", {"payload": {}}),
    ("POST", "/tasks/claim", {}),
    ("POST", "/workers", None),
    ("PATCH", f"/tasks/{UNKNOWN}", {"status": "running"}),
    ("PATCH", "/workers/alice", None),
    ("DELETE", "/workers/alice", None),
]


@pytest.mark.parametrize("key", [None, "", "wrong", "alice"])
def test_without_a_good_key_every_call_is_unauthorized(keyed: Stack, key: str | None) -> None:
    nobody = Remote(keyed.apis[0].client, key)
    answers = [nobody.send(method, path, json=body) for method, path, body in CALLS]
    answers.append(keyed.apis[0].client.get("/v1/me", headers={} if key is None else {"X-API-Key": key}))
    for answer in answers:
        refused(answer, 401, "unauthorized")
        assert "www-authenticate" in answer.headers


@pytest.mark.parametrize(("method", "path", "body"), CALLS)
def test_who_may_only_read_changes_nothing(who: Who, method: str, path: str, body: Json | None) -> None:
    answer = who("reader").send(method, path, json=body)
    if method == "GET":
        assert answer.status_code in (200, 404)
    else:
        refused(answer, 403, "forbidden")


def test_everybody_is_told_who_they_are(keyed: Stack) -> None:
    client = keyed.apis[0].client
    for key, grant in KEYS.items():
        assert good(client.get("/v1/me", headers={"X-API-Key": key}), 200).json() == {"id": grant["identity"]}
    bearer = client.get("/v1/me", headers={"Authorization": "Bearer bob-key"})
    assert bearer.json() == {"id": "bob"}


@pytest.mark.parametrize("name", PROBLEMS)
def test_every_problem_has_a_page_that_needs_no_key(keyed: Stack, name: str) -> None:
    page = good(httpx.get(f"{keyed.apis[0].url}/v1/problems/{name}"), 200)
    assert page.headers["content-type"].startswith("text/html")
    assert name.replace("-", " ") in page.text.replace("-", " ").lower()


@pytest.mark.parametrize("name", ["nosuch", "Forbidden", "", "a%2Fb", "%3Cscript%3E"])
def test_a_problem_that_is_none_has_no_page(keyed: Stack, name: str) -> None:
    page = httpx.get(f"{keyed.apis[0].url}/v1/problems/{name}")
    assert page.status_code == 404
    assert "<script>" not in page.text or page.headers["content-type"] == "application/problem+json"


def test_paths_and_methods_that_are_none_are_problems_too(who: Who) -> None:
    refused(who("alice").send("GET", "/nosuch"), 404, "not-found")
    refused(who("alice").send("POST", f"/tasks/{UNKNOWN}", json={}), 405, "method-not-allowed")
    refused(who("alice").send("PUT", "/workers", json={}), 405, "method-not-allowed")


def test_a_job_for_everybody_is_registered_by_an_admin_only(who: Who) -> None:
    name = fresh("Everywhere")
    refused(who("alice").put(name, "@global"), 403, "forbidden")
    assert who("alice").job(f"@global:modifiers:{name}").status_code == 404
    job = good(who("admin").put(name, "@global"), 201).json()["full_name"]
    refused(who("alice").put(name, "@global"), 403, "forbidden")
    assert who("bob").submit(job)["created_by_id"] == "bob"
    assert who("admin").claim_one()["job_name"] == job


def test_the_identity_is_the_worker_unless_another_is_named(who: Who) -> None:
    job = good(who("bob").put("Mine"), 201).json()
    assert job["workers"] == ["bob"]
    task = who("alice").submit(job["full_name"])
    claimed = who("bob").claim_one()
    assert (claimed["id"], claimed["worker_id"], claimed["created_by_id"]) == (task["id"], "bob", "alice")
    assert who("bob").report(task, "running")["status"] == "running"
    assert who("bob").report(task, "completed", result="done")["result"] == "done"
    assert Jobs(keyed_client(who("bob"))).record(task["id"])["submitted_by"] == "alice"


def keyed_client(remote: Remote) -> httpx.Client:
    """For the other API, with the same key."""
    return httpx.Client(base_url=remote.client.base_url, headers={"X-API-Key": str(remote.key)}, timeout=30)


def test_nobody_acts_with_the_worker_of_somebody_else(who: Who, alice: Remote, job: str) -> None:
    task = alice.submit(job)
    thief = Remote(alice.client, "bob-key", alice.worker_id, alice.room)
    refused(thief.ask(), 403, "forbidden")
    refused(thief.ask(wait=50), 403, "forbidden")
    refused(thief.put("Other"), 403, "forbidden")
    refused(thief.beat(), 403, "forbidden")
    refused(thief.leave(), 403, "forbidden")
    assert alice.task(task)["status"] == "pending"
    assert alice.told_to_cancel() == []
    admin = Remote(alice.client, "admin-key", alice.worker_id, alice.room)
    good(admin.beat(), 200)
    good(admin.leave(), 204)
    refused(alice.beat(), 404, "worker-not-found")


@pytest.mark.parametrize(("state", "status"), [("claimed", "running"), ("running", "completed"), ("running", "failed")])
def test_only_the_holder_or_an_admin_reports(who: Who, alice: Remote, job: str, state: str, status: str) -> None:
    task = who("bob").submit(job)
    alice.claim_one()
    if state == "running":
        alice.report(task, "running")
    before = alice.task(task)
    for stranger in (who("bob"), who("submitter"), who("bob").worker()):  # the first has submitted it
        refused(stranger.patch(task, status), 403, "forbidden")
    assert alice.task(task) == before
    assert who("admin").report(task, status)["status"] == status


def test_a_report_on_a_task_that_nobody_holds_comes_too_late(who: Who, alice: Remote, job: str) -> None:
    pending, done = alice.submit(job), None
    for who_ever in (alice, who("bob"), who("admin")):
        refused(who_ever.patch(pending, "running"), 409, "invalid-task-transition")
    alice.claim_one()
    alice.report(pending, "running")
    done = alice.report(pending, "completed")
    assert done["status"] == "completed"
    for who_ever in (alice, who("admin")):
        refused(who_ever.patch(pending, "failed"), 409, "invalid-task-transition")
    assert alice.task(pending)["status"] == "completed"


@pytest.mark.parametrize("state", ["pending", "claimed", "running"])
def test_the_submitter_the_holder_and_an_admin_cancel_and_nobody_else(
    who: Who, alice: Remote, job: str, state: str
) -> None:
    holder = Remote(alice.client, "alice-key", alice.worker_id, alice.room)
    for allowed in ("submitter", "canceler", "alice", "admin"):
        if (allowed, state) == ("alice", "pending"):
            continue  # nobody holds it yet
        task = who("submitter").submit(job)
        if state != "pending":
            holder.claim_one()
        if state == "running":
            holder.report(task, "running")
        refused(who("bob").patch(task, "cancelled"), 403, "forbidden")
        assert alice.task(task)["status"] == state
        assert who(allowed).report(task, "cancelled")["status"] == "cancelled"


def test_who_may_only_cancel_reports_nothing_else(who: Who) -> None:
    holder, canceler = who("submitter"), who("canceler")
    job = holder.register()["full_name"]
    task = holder.submit(job)
    assert holder.claim_one()["id"] == task["id"]
    for status in ("running", "completed", "failed"):
        said = refused(canceler.patch(task, status), 403, "forbidden")
        assert "'submit'" in said["detail"]
        assert holder.task(task)["status"] == "claimed"
    said = refused(who("reader").patch(task, "cancelled"), 403, "forbidden")
    assert "'submit' or 'cancel'" in said["detail"]
    assert canceler.report(task, "cancelled")["status"] == "cancelled"


def test_a_private_room_is_no_secret_but_its_name(who: Who, alice: Remote, job: str) -> None:
    """Rooms order the jobs; they are no protection between identities."""
    assert good(who("bob").job(job), 200).json()["full_name"] == job
    task = who("bob").submit(job)
    assert good(who("reader").look(task), 200).json()["id"] == task["id"]
    assert [each["id"] for each in who("reader").tasks()["items"]] == [task["id"]]
    assert alice.claim_one()["id"] == task["id"]


def test_an_idempotency_key_belongs_to_its_caller(who: Who, job: str) -> None:
    made = [
        good(who(name).post(job, json={"payload": {}}, headers={"Idempotency-Key": "same"}), 202).json()["id"]
        for name in ("alice", "bob", "alice")
    ]
    assert made[0] == made[2] != made[1]


def test_anybody_may_ask_for_a_sweep_but_not_at_any_rate(keyed: Stack, alice: Remote, job: str) -> None:
    task = alice.at_state(job, "running")
    nobody = Remote(keyed.apis[0].client)
    asked = [nobody.sweep() for _ in range(5)]
    assert asked.count(True) <= 1 + 1  # five calls may touch two seconds
    assert alice.task(task)["status"] == "running"
    for method in ("GET", "PUT", "DELETE", "PATCH"):
        assert keyed.apis[0].client.request(method, f"{PREFIX}/sweep").status_code in (401, 405)


def test_who_may_do_what_over_the_other_api(who: Who, alice: Remote, job: str) -> None:
    task = alice.at_state(job, "running")
    with keyed_client(who("reader")) as reader, keyed_client(who("alice")) as owner:
        assert Jobs(reader).record(task["id"])["submitted_by"] == "alice"
        assert reader.post(f"/api/v1/jobs/{task['id']}/$cancel").status_code == 403
        assert Jobs(owner).cancel(task["id"]).json()["status"] == "canceled"
    assert alice.told_to_cancel() == [task["id"]]

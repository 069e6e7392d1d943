"""Paths, queries and headers of any bytes (contract, section 3): a plain answer or a problem, never a server error."""

from __future__ import annotations

import socket
from urllib.parse import quote, urlsplit

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.acceptance.kinds import shared
from tests.support.jobs import good
from tests.support.stack import EMBEDDED, PREFORK, Stack
from tests.support.strict import problem, strict

UNKNOWN = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
UUID = "01563e3a-b5d3-d676-4c61-efb99302bd5b"  # the same 128 bits
NOTE = "/api/v1/tasks/sample.note"
ROUTES = [
    ("GET", "/api/v1/jobs/{}"),
    ("DELETE", "/api/v1/jobs/{}"),
    ("GET", "/api/v1/jobs/{}/$result"),
    ("GET", "/api/v1/jobs/{}/$stream"),
    ("POST", "/api/v1/jobs/{}/$cancel"),
    ("POST", "/api/v1/jobs/{}/$cancel?force=true"),
    ("POST", "/api/v1/jobs/{}/$retry"),
    ("GET", "/api/v1/compute/{}/result"),
]
NO_IDS = [
    "%00",
    "%2F",
    "a%2Fb",
    f"{UNKNOWN}%2F",
    f"%2F{UNKNOWN}",
    "%FF",
    "%C3%28",
    "%ED%A0%80",
    "%",
    "%zz",
    "%20",
    "%2E%2E",
    "*",
    "$",
    "$result",
    "-",
    "null",
    "0",
    f"8{UNKNOWN[1:]}",  # 129 bits
    "Z" * 26,
    UNKNOWN + "0",
    UNKNOWN[:-1],
    UNKNOWN.replace("A", "U"),
    UNKNOWN.replace("A", "I"),
    f"{UNKNOWN}%0A",
    f"{UNKNOWN}%00",
    f"%20{UNKNOWN}",
    "%EF%BC%90" + UNKNOWN[1:],  # a wide 0
    "0%C5%BF" + UNKNOWN[2:],  # in upper case it is an S
    UUID.replace("-", ""),
    "%7B" + UUID + "%7D",
    f"urn:uuid:{UUID}",
    UUID[:-1],
    UUID + "0",
    UUID.replace("0", "g"),
    "a" * 10_000,
    "%F0%9F%98%80",
    "<script>",
    "'%20or%201=1--",
]


@shared(EMBEDDED, PREFORK)
@pytest.mark.parametrize(("method", "route"), ROUTES)
def test_what_is_no_id_is_a_bad_request_wherever_it_stands(stack: Stack, method: str, route: str) -> None:
    for text in NO_IDS:
        answer = stack.jobs.client.request(method, route.format(text), timeout=5)
        body = problem(answer, 400)
        assert (body["type"], body["title"]) == ("urn:servicekit:error:invalid-ulid", "Invalid ULID Format"), text
        assert body["detail"].startswith("Invalid job ID format: "), text


@shared(EMBEDDED, PREFORK)
@pytest.mark.parametrize(("method", "route"), ROUTES)
def test_any_spelling_of_an_unknown_id_is_not_found(stack: Stack, method: str, route: str) -> None:
    for text in (
        UNKNOWN,
        UNKNOWN.lower(),
        UNKNOWN.title(),
        UUID,
        UUID.upper(),
        quote(UNKNOWN, safe="").replace("A", "%41"),
    ):
        body = problem(stack.jobs.client.request(method, route.format(text), timeout=5), 404)
        assert body["detail"] == f"Job with id {UNKNOWN} not found"


@shared(EMBEDDED, PREFORK)
def test_any_spelling_of_an_id_finds_its_job(stack: Stack) -> None:
    job = stack.jobs.submit("note", mark="found")
    record = stack.jobs.wait(job, "completed")
    bits = f"{int.from_bytes(crockford(job), 'big'):032x}"
    uuid = "-".join([bits[:8], bits[8:12], bits[12:16], bits[16:20], bits[20:]])
    for text in (job, job.lower(), uuid, uuid.upper()):
        assert stack.jobs.record(text) == record
        assert stack.jobs.result(text)["result"] == "found"


def crockford(ulid: str) -> bytes:
    digits = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
    number = 0
    for letter in ulid:
        number = number * 32 + digits.index(letter)
    return number.to_bytes(16, "big")


@shared(EMBEDDED)
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(raw=st.binary(min_size=1, max_size=40))
def test_any_bytes_in_the_place_of_an_id_are_a_bad_request(stack: Stack, raw: bytes) -> None:
    text = "".join(f"%{byte:02X}" for byte in raw)
    for route in ("/api/v1/jobs/{}", "/api/v1/jobs/{}/$stream", "/api/v1/compute/{}/result"):
        problem(stack.jobs.client.get(route.format(text), timeout=5), 400)


@shared(EMBEDDED)
def test_odd_names_of_tasks_and_queues_are_not_found(stack: Stack) -> None:
    client = stack.jobs.client
    for text in ("%00", "%FF", "%ED%A0%80", "%", "a%2Fb", "..", "a" * 5_000, "%F0%9F%98%80", "sample.note%00", "%20"):
        problem(client.post(f"/api/v1/tasks/{text}", json={}), 404)
        problem(client.get(f"/api/v1/queues/{text}"), 404)
        problem(client.patch(f"/api/v1/queues/{text}", json={"paused": True}), 404)


@shared(EMBEDDED, PREFORK)
def test_a_tag_is_taken_whatever_its_bytes_are(stack: Stack) -> None:
    for query, tags in {
        "tag=%FF": ["\ufffd"],
        "tag=%00": ["\ufffd"],
        "tag=a%00b&tag=a": ["a\ufffdb", "a"],
        "tag=%ED%A0%80": ["\ufffd\ufffd\ufffd"],
        "tag=%": ["%"],
        "tag=%zz": ["%zz"],
        "tag=%E2%80%A8%0D%0A": ["\u2028\r\n"],
        "tag=%F0%9F%98%80+x": ["\U0001f600 x"],
        "tag=" + "%C3%A9" * 200: ["é" * 200],
        "&".join(f"tag={number}" for number in range(50)): [str(number) for number in range(50)],
    }.items():
        job = good(stack.jobs.client.post(f"{NOTE}?{query}", json={}), 202).json()["job_id"]
        answer = good(stack.jobs.client.get(f"/api/v1/jobs/{job}"), 200)
        assert strict(answer.content)["tags"] == tags, query


@shared(EMBEDDED)
def test_a_query_that_does_not_fit_is_refused_and_leaves_nothing(stack: Stack) -> None:
    before = len(stack.jobs.list())
    tags = "&".join(f"tag={number}" for number in range(51))
    words = ("tag=", "tag", "tag=" + "a" * 201, "tag=" + "%C3%A9" * 201, tags, "%00=1", "%FF", "tag=a&tags=b")
    numbers = ("priority=%00", "priority=1&priority=x", "priority=NaN", "priority=1e2", "priority=%EF%BC%91")
    for query in words + numbers:
        assert problem(stack.jobs.client.post(f"{NOTE}?{query}", json={}), 422)["errors"][0]["loc"][0] == "query", query
    assert len(stack.jobs.list()) == before
    for query in ("status_filter=%00", "status_filter=", "task=", "queue=", "task=" + "a" * 201, "submitted_after=%FF",
                  "submitted_after=2026-01-01", "%00=%00", "nosuch"):  # fmt: skip
        problem(stack.jobs.client.get(f"/api/v1/jobs?{query}"), 422)
    for query in ("task=%00", "queue=%FF", "task=%25", "task='", "queue=%F0%9F%98%80", ""):
        assert strict(good(stack.jobs.client.get(f"/api/v1/jobs?{query}"), 200).content) == [] or not query


@shared(EMBEDDED, PREFORK)
def test_an_idempotency_key_is_any_text_of_one_to_255_characters(stack: Stack) -> None:
    unique = stack.name()
    for key in (b"x" * (255 - 12), b"\xe9\xff", b'"quoted"', b"\x80", "é\U0001f600".encode(), b"a,b", b"%00", b"\x7f"):
        answers = [
            stack.jobs.client.post(NOTE, json={}, headers={b"Idempotency-Key": unique.encode() + key}) for _ in range(2)
        ]
        if key == b"\x7f" and answers[0].status_code == 400:
            continue  # the HTTP parser may refuse a control character
        first, again = (strict(good(answer, 202).content)["job_id"] for answer in answers)
        assert first == again, key
        assert answers[1].headers["idempotent-replayed"] == "true"
    for key in (b"", b"x" * 256, b"\xe9" * 256):
        fault = problem(stack.jobs.client.post(NOTE, json={}, headers={b"Idempotency-Key": key}), 422)["errors"][0]
        assert fault["loc"] == ["header", "Idempotency-Key"]


@shared(EMBEDDED)
def test_a_last_event_id_that_is_none_gives_the_present_state(stack: Stack) -> None:
    job = stack.jobs.submit("note")
    stack.jobs.wait(job, "completed")
    for value in (
        b"",
        b"x",
        b"\xe9",
        b"1-4",
        b"1-9-0",
        b"-1-4-0",
        b"1-4-" + b"9" * 400,
        b"9" * 5_000 + b"-1-0",
        b"\xd9\xa1-4-0",
    ):
        answer = stack.jobs.client.get(f"/api/v1/jobs/{job}/$stream", headers={b"Last-Event-ID": value}, timeout=5)
        assert answer.status_code in (200, 204), value
        assert answer.status_code == 204 or b'"completed"' in answer.content


@shared(EMBEDDED, PREFORK)
@pytest.mark.parametrize(
    "head",
    [
        b"GET /api/v1/jobs/\xff HTTP/1.1",
        b"GET /api/v1/jobs/\x00 HTTP/1.1",
        "GET /api/v1/jobs/é HTTP/1.1".encode(),
        b"GET /api/v1/jobs?task=\xff HTTP/1.1",
        b"GET http://127.0.0.1/api/v1/jobs/x HTTP/1.1",
        b"GET //api/v1/jobs HTTP/1.1",
        b"GET /api/v1/jobs/../../health HTTP/1.1",
        b"GET /api/v1/jobs/x#y HTTP/1.1",
        b"GET * HTTP/1.1",
        b"GET /api/v1/jobs/%s HTTP/1.1" % (b"a" * 60_000),
        b"GET /api/v1/jobs?%s HTTP/1.1" % (b"tag=a&" * 10_000),
        b"GET /api/v1/jobs HTTP/9.9",
        b"\x00\x01\x02",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # somebody speaks TLS
        b"POST /api/v1/compute HTTP/1.1\r\nContent-Length: -1",
        b"POST /api/v1/compute HTTP/1.1\r\nContent-Length: %s" % (b"9" * 5_000),
        b"POST /api/v1/compute HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2",
        b"POST /api/v1/compute HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 5",
        b"GET /api/v1/jobs HTTP/1.1\r\nX: a\x00b",
        b"GET /api/v1/jobs HTTP/1.1\r\nX: %s" % (b"a" * 200_000),
        b"GET /api/v1/jobs HTTP/1.1\r\n%s" % b"\r\n".join(b"X-%d: a" % number for number in range(5_000)),
    ],
    ids=lambda head: repr(head[:40]),
)
def test_bytes_that_no_client_would_send_are_no_server_error(stack: Stack, head: bytes) -> None:
    where = urlsplit(stack.apis[0].url)
    with socket.create_connection((where.hostname or "", where.port or 0), timeout=5) as connection:
        connection.sendall(head + f"\r\nHost: {where.netloc}\r\nConnection: close\r\n\r\n0\r\n\r\n".encode())
        connection.shutdown(socket.SHUT_WR)
        answer = connection.recv(65536)
    assert answer == b"" or answer.startswith(b"HTTP/1.1 ")
    assert not answer.startswith(b"HTTP/1.1 5"), answer[:500]
    assert stack.jobs.client.get("/livez").status_code == 200

"""Request bodies at their limits and of any bytes (contract, section 3): taken as they are, or refused by a problem."""

from __future__ import annotations

import gzip
import json
import socket
import zlib
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.acceptance.kinds import own, shared
from tests.support.jobs import good
from tests.support.stack import EMBEDDED, PREFORK, SQLITE, Kind, Stack
from tests.support.strict import problem, strict

JSON = {"Content-Type": "application/json"}
SHOWN = "/api/v1/tasks/values.shown"
MOST_BYTES = 1 << 20


def post(stack: Stack, body: Any, path: str = SHOWN, headers: dict[str, Any] = JSON) -> httpx.Response:
    return stack.jobs.client.post(path, content=body, headers=headers)


def recorded(stack: Stack) -> int:
    return len(stack.jobs.list())


def result(stack: Stack, answer: httpx.Response) -> Any:
    job = good(answer, 202).json()["job_id"]
    stack.jobs.wait(job, "completed")
    return stack.jobs.result(job)["result"]


def chunked(body: bytes) -> Iterator[bytes]:
    """Sent without a Content-Length."""
    yield from (body[start : start + 10_000] for start in range(0, len(body), 10_000))


@shared(EMBEDDED, PREFORK)
@pytest.mark.parametrize("sent", [bytes, chunked], ids=["declared", "chunked"])
def test_a_body_may_be_as_large_as_the_limit_says_and_no_byte_larger(stack: Stack, sent: Any) -> None:
    frame = len(b'{"value":""}')
    text = "x" * (MOST_BYTES - frame)
    body = b'{"value":"%s"}' % text.encode()
    assert len(body) == MOST_BYTES
    assert result(stack, post(stack, sent(body), "/api/v1/tasks/values.echo")) == text
    before = recorded(stack)
    assert "JOBS_MAX_BODY_BYTES" in problem(post(stack, sent(body + b" ")), 413)["detail"]
    assert recorded(stack) == before


ODD_BODIES = {
    "nan": b'{"value": NaN}',
    "infinity": b'{"value": [Infinity]}',
    "minus infinity": b'{"value": {"a": -Infinity}}',
    "no utf-8": b'{"value": "\xff"}',
    "cut utf-8": b'{"value": "\xe2\x82"}',
    "overlong utf-8": b'{"value": "\xc0\x80"}',
    "surrogate in utf-8": b'{"value": "\xed\xa0\x80"}',
    "latin-1": '{"value": "é"}'.encode("latin-1"),
    "byte order mark": b'\xef\xbb\xbf{"value": 1}',
    "utf-16": '{"value": 1}'.encode("utf-16"),
    "utf-16 without mark": '{"value": 1}'.encode("utf-16-le"),
    "utf-32": '{"value": 1}'.encode("utf-32"),
    "high half": rb'{"value": "\ud800"}',
    "low half": rb'{"value": "\udc00x"}',
    "halves in the wrong order": rb'{"value": "\udc00\ud800"}',
    "half in a key": rb'{"value": {"\ud800": 1}}',
    "deep lists": b'{"value": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "deep objects": b'{"value": ' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"}",
    "unclosed depth": b"[" * 100_000,
    "just too deep": b'{"value": ' + b"[" * 201 + b"]" * 201 + b"}",
    "too large a number": b'{"value": 1e999}',
    "too small a number": b'{"value": [-1E+400]}',
    "too many digits": b'{"value": ' + b"1" * 5_000 + b"}",
    "raw control character": b'{"value": "a\x00b"}',
    "raw line end": b'{"value": "a\nb"}',
    "single quotes": b"{'value': 1}",
    "comment": b'{"value": 1 /* one */}',
    "trailing comma": b'{"value": [1,]}',
    "two documents": b'{"value": 1} {"value": 2}',
    "leading zero": b'{"value": 01}',
    "hexadecimal": b'{"value": 0x1}',
    "bare point": b'{"value": 1.}',
    "plus": b'{"value": +1}',
    "bad escape": rb'{"value": "\x41"}',
    "cut": b'{"value": "a',
    "blank": b"  \n",
    "nul": b"\x00",
    "a list": b'[{"value": 1}]',
    "a number": b"1",
    "null": b"null",
    "a form": b"value=1",
    "what messages reserve": b'{"value": [{"a": {"__type__": "uuid", "__value__": {"hex": "00"}}}]}',
    "what messages do not know": b'{"value": {"__value__": 1, "__type__": "nosuch"}}',
    "what messages cannot look up": b'{"value": {"\\u005f_type__": [], "__value__": 1}}',
}


@shared(EMBEDDED, PREFORK)
def test_a_body_that_is_no_json_object_is_refused_and_leaves_nothing(stack: Stack) -> None:
    before = recorded(stack)
    for name, body in ODD_BODIES.items():
        for sent in (body, chunked(body)):
            answer = post(stack, sent)
            assert answer.status_code == 422, name
            assert problem(answer, 422)["errors"][0]["loc"][0] == "body"
        problem(post(stack, body, "/api/v1/compute"), 422)
        problem(stack.jobs.client.patch("/api/v1/queues/jobs", content=body, headers=JSON), 422)
    assert recorded(stack) == before
    assert stack.jobs.queue()["max_concurrency"] is None


TAKEN = {
    "nul": rb'{"value": "a\u0000b"}',
    "nul in a key": rb'{"value": {"\u0000": 1}}',
    "pair": rb'{"value": "\ud83d\ude00"}',
    "controls": rb'{"value": "\u0001\u001f\u007f\u0085\u2028\u2029\ufeff\uffff"}',
    "escapes": rb'{"value": "\"\\\/\b\f\n\r\t"}',
    "quoted number": b'{"value": "1e5"}',
    "minus zero": b'{"value": [-0, -0.0, 0.0]}',
    "many digits": b'{"value": ' + b"1" * 400 + b"}",
    "many minus digits": b'{"value": -' + b"9" * 400 + b"}",
    "exponents": b'{"value": [1e0, 1E308, 5e-324, 1e-999, 123456789.123456789]}',
    "past 2**53": b'{"value": [9007199254740993, 18446744073709551616]}',
    "empty": b'{"value": ["", [], {}, {"": ""}]}',
    "depth": b'{"value": ' + b"[" * 190 + b"]" * 190 + b"}",
    "white space": b' \r\n\t{ "value" :\n[ 1 , 2 ] } \n',
    "the same key twice": b'{"value": 1, "value": {"a": 1, "a": 2}}',
    "words of messages": b'{"value": [{"__type__": 1}, {"__value__": 1}, {"__type__": 1, "__value__": 2, "a": 3}]}',
    "escaped key": rb'{"\u0076alue": "\u0061"}',
}


@shared(EMBEDDED, PREFORK, SQLITE)
def test_what_is_taken_reaches_the_task_as_it_was_sent(stack: Stack) -> None:
    answers = {name: post(stack, body) for name, body in TAKEN.items()}
    for name, answer in answers.items():
        assert result(stack, answer) == repr(json.loads(TAKEN[name])["value"]), name


@shared(EMBEDDED, PREFORK)
def test_any_name_may_be_an_argument(stack: Stack) -> None:
    names = ["self", "task", "args", "kwargs", "cls", "_x", "model_config", "schema", "é", "", "\x00", "a b", "\u2028"]
    sent = {name: number for number, name in enumerate(names)}
    answer = stack.jobs.client.post("/api/v1/tasks/values.echo_all", json=sent)
    assert result(stack, answer) == sent


@shared(EMBEDDED)
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=st.binary(max_size=60) | st.text(max_size=30).map(str.encode))
def test_any_bytes_are_no_server_error(stack: Stack, body: bytes) -> None:
    answer = post(stack, body)
    strict(answer.content)
    if body:
        problem(answer, 422)


@shared(EMBEDDED)
def test_a_body_that_is_not_said_to_be_json_is_refused(stack: Stack) -> None:
    before = recorded(stack)
    for kind in (
        "",
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "json",
        ";",
        "application/jsonx",
        "application/",
        "*/*",
        "application/json-seq",
        b"\xe9",
        "a" * 5_000,
    ):
        answer = post(stack, b'{"value": 1}', headers={"Content-Type": kind})
        assert problem(answer, 422)["errors"][0]["type"] == "content_type", kind
    answer = post(stack, b'{"value": 1}', headers={})
    assert problem(answer, 422)["errors"][0]["type"] == "content_type"
    assert recorded(stack) == before
    for kind in ("application/json", "APPLICATION/JSON", "application/json; charset=utf-8", "application/ld+json"):
        assert result(stack, post(stack, b'{"value": 1}', headers={"Content-Type": kind})) == "1"


@shared(EMBEDDED)
def test_no_body_means_no_arguments(stack: Stack) -> None:
    for sent in (b"", chunked(b"")):
        good(post(stack, sent, "/api/v1/tasks/sample.noop", headers={}), 202)
        [fault] = problem(post(stack, b""), 422)["errors"]
        assert (fault["loc"], fault["type"]) == (["body", "value"], "missing")


@shared(EMBEDDED)
def test_a_compressed_body_is_refused_and_never_unpacked(stack: Stack) -> None:
    body = b'{"value": 1}'
    bomb = gzip.compress(b'{"value": "' + b"x" * 50_000_000 + b'"}')
    assert len(bomb) < MOST_BYTES
    for encoding, packed in (
        ("gzip", gzip.compress(body)),
        ("deflate", zlib.compress(body)),
        ("br", body),
        ("gzip", bomb),
    ):
        faults = problem(post(stack, packed, headers={**JSON, "Content-Encoding": encoding}), 422)["errors"]
        assert faults[0]["type"] == "content_encoding"
    problem(post(stack, gzip.compress(body)), 422)
    assert result(stack, post(stack, body, headers={**JSON, "Content-Encoding": "identity"})) == "1"


@shared(EMBEDDED)
def test_a_body_of_a_thousand_faults_gets_a_short_answer(stack: Stack) -> None:
    body = json.dumps({f"no_such_{number}": number for number in range(30_000)})
    answer = post(stack, body, "/api/v1/tasks/sample.note")
    assert len(problem(answer, 422)["errors"]) == 100
    assert len(answer.content) < 50_000


@own(EMBEDDED)
def test_a_client_that_leaves_within_its_body_is_no_error_in_the_log(
    kind: Kind, new_stack: Callable[..., Stack]
) -> None:
    stack = new_stack(kind).start()
    where = urlsplit(stack.apis[0].url)
    for method, path in (("POST", "/api/v1/compute"), ("PATCH", "/api/v1/queues/jobs"), ("POST", "/api/v1/tasks/x")):
        head = f"{method} {path} HTTP/1.1\r\nHost: {where.netloc}\r\nContent-Type: application/json\r\n"
        with socket.create_connection((where.hostname, where.port)) as connection:
            connection.sendall(f'{head}Content-Length: 100\r\n\r\n{{"dur'.encode())
    assert stack.jobs.list() == []  # it has come past them
    stack.jobs.wait(stack.jobs.submit("note"), "completed")
    assert "Traceback" not in stack.process.log

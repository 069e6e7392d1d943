"""Where the server is and who asks: what cannot be right is refused before anything is sent."""

from __future__ import annotations

import time

import pytest

from celery_jobs.client import HttpApi, JobManager, Unreachable, register
from celery_jobs.client.offered import OFFERED
from celery_jobs.client.wire import _part
from tests.unit.test_client_offers import Number, Rotate


@pytest.mark.parametrize("url", ["", "127.0.0.1:8000", "localhost", "ftp://host", "http://", "http://h/?a=b", "/"])
def test_what_is_no_url_of_a_server_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"URL|query"):
        HttpApi(url)


def test_a_url_may_have_a_path_and_a_slash_at_its_end() -> None:
    assert HttpApi("https://example.org/jobs/").base_url == "https://example.org/jobs"


def test_a_key_goes_into_the_headers_and_nowhere_else() -> None:
    api = HttpApi("http://127.0.0.1:9", api_key="secret")
    assert api.get_headers() == {"Authorization": "Bearer secret"}
    assert HttpApi("http://127.0.0.1:9").get_headers() == {}
    assert "secret" not in repr(api)


@pytest.mark.parametrize("key", ["schlüssel", "two\nlines"])
def test_a_key_that_is_no_header_is_refused_without_saying_it(key: str) -> None:
    with pytest.raises(ValueError, match="printable ASCII") as refused:
        HttpApi("http://127.0.0.1:9", api_key=key)
    assert key not in str(refused.value)


def test_a_key_beside_an_api_manager_is_refused() -> None:
    with pytest.raises(TypeError, match="ApiManager"):
        JobManager(HttpApi("http://127.0.0.1:9"), api_key="secret")


@pytest.mark.parametrize("text", ["a/b", "..", ".", "a b", "ä", "%2F", "a?b#c"])
def test_a_name_stays_one_part_of_the_path(text: str) -> None:
    assert not {"/", "?", "#", " "} & set(_part(text))
    assert _part(text) not in (".", "..")


def test_a_name_of_a_job_stays_readable() -> None:
    assert _part("@global:modifiers:Rotate") == "@global:modifiers:Rotate"


def test_a_heartbeat_that_cannot_be_delivered_is_no_error() -> None:
    begun = time.monotonic()
    with JobManager("http://127.0.0.1:9") as jobs:
        jobs.heartbeat()
    assert time.monotonic() - begun < 3


def test_registering_where_nobody_answers_is_an_error_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("celery_jobs.client.jobs.CALL_PATIENCE_SECONDS", 0.5)
    with JobManager("http://127.0.0.1:9") as jobs:
        with pytest.raises(Unreachable, match=r"http://127\.0\.0\.1:9/v1/joblib/workers"):
            jobs.register(Rotate)
        assert len(jobs) == 0


def test_a_class_is_offered_to_the_command_with_and_without_a_room() -> None:
    assert register(Rotate) is Rotate
    assert OFFERED[Rotate] is None
    register(room="room_1")(Rotate)
    assert OFFERED.pop(Rotate) == "room_1"
    with pytest.raises(TypeError):
        register(Number)
    assert Number not in OFFERED

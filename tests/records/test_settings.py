"""Settings: misspelt, wrong and odd ones, as an environment or a file of variables may hold them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from celery_jobs.records.errors import SettingsError
from celery_jobs.records.settings import Settings, environment_names, load_settings

NAMES = sorted(environment_names().values())
OURS = [name for name in NAMES if name.startswith("JOBS_")]
PROPERTIES = Settings.model_json_schema(by_alias=False)["properties"]
SECRET = "secret-of-alice"


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.upper() in NAMES or name.upper().startswith("JOBS_"):
            monkeypatch.delenv(name)


def misspelt(name: str) -> Iterator[str]:
    """With one letter dropped, doubled, changed, or swapped with the next; those that stay `JOBS_…`."""
    for i in range(len("JOBS_"), len(name)):
        yield name[:i] + name[i + 1 :]
        yield name[:i] + name[i] + name[i:]
        yield name[:i] + "X" + name[i + 1 :]
        yield name[:i] + name[i + 1 : i + 2] + name[i] + name[i + 2 :]


@pytest.mark.parametrize("name", OURS)
def test_a_misspelt_setting_names_the_near_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = [*misspelt(name)][len(name) % 4 :: 4]  # all of them take long
    for wrong in {*chosen, name.removesuffix("S") + "S_", name.replace("JOBS_", "JOBS__")} - {
        *NAMES,
        "JOBS_API_KEY",  # the command line's own
    }:
        with monkeypatch.context() as patch:
            patch.setenv(wrong, "1")
            with pytest.raises(SettingsError) as told:
                load_settings()
        assert str(told.value) == f"{wrong} is no setting of this service; did you mean {name}?"


@pytest.mark.parametrize("name", ["JOBS_URL", "JOBS_API_KEY"])
def test_what_commands_read_themselves_is_no_misspelling(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "1")
    load_settings()
    monkeypatch.delenv(name)
    monkeypatch.setenv(name.replace("_", "_R"), "1")
    with pytest.raises(SettingsError, match=f"did you mean {name}"):
        load_settings()


@pytest.mark.parametrize("name", ["JOBS", "JOB_PORT", "NJOBS_PORT", "MY_JOBS_PORT", "CELERY_BROKER", "PORT"])
def test_variables_of_other_programs_are_left_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "1")
    assert load_settings() == Settings()


def test_case_does_not_matter_and_hides_no_slip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("jobs_port", "8123")
    assert load_settings().port == 8123
    monkeypatch.setenv("jobs_prt", "8124")
    with pytest.raises(SettingsError, match="jobs_prt is no setting of this service; did you mean JOBS_PORT"):
        load_settings()


@pytest.mark.parametrize("name", NAMES)
def test_an_empty_setting_is_as_good_as_none(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "")
    assert load_settings() == Settings()


def test_a_misspelt_setting_is_told_even_when_it_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOBS_PROT", "")
    with pytest.raises(SettingsError, match="JOBS_PORT"):
        load_settings()


def numbers() -> Iterator[tuple[str, dict[str, Any]]]:
    for field, schema in PROPERTIES.items():
        kind = next((each for each in schema.get("anyOf", ()) if each["type"] != "null"), schema)
        if kind["type"] in ("integer", "number"):
            yield field, kind


@pytest.mark.parametrize(("field", "kind"), [*numbers()])
def test_a_number_out_of_its_bounds_is_named(field: str, kind: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    name = environment_names()[field]
    lowest = kind["minimum" if "minimum" in kind else "exclusiveMinimum"]
    wrong = [str(kind["maximum"] + 1), str(lowest - 1), "many", "1e400", "inf", "nan", "1,5", '"1"', "0x10", " "]
    if "exclusiveMinimum" in kind:
        wrong.append(str(lowest))
    for value in wrong:
        monkeypatch.setenv(name, value)
        with pytest.raises(SettingsError) as told:
            load_settings()
        assert str(told.value).startswith(f"{name}: ")
        assert PROPERTIES[field]["description"] in str(told.value)
    monkeypatch.setenv(name, f" {kind['maximum']} ")  # a file of variables may leave spaces
    assert getattr(load_settings(), field) == kind["maximum"]


def test_every_wrong_setting_is_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"JOBS_PORT": "eighty", "JOBS_INSECURE": "maybe", "CELERY_BROKER_URL": "kafka://x"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError) as told:
        load_settings()
    lines = str(told.value).splitlines()
    assert {line.partition(":")[0] for line in lines} == {"JOBS_PORT", "JOBS_INSECURE", "CELERY_BROKER_URL"}
    assert any("'eighty'" in line for line in lines)
    assert "Value error" not in str(told.value)


@pytest.mark.parametrize(
    "value",
    [
        f'{{"{SECRET}": 3}}',
        f'{{"{SECRET}": {{"identity": 3}}}}',
        f'{{"{SECRET}": {{"identity": "alice", "scope": ["read"]}}}}',
        f'{{"{SECRET}": {{"identity": "alice", "scopes": ["write"]}}}}',
        f'{{"{SECRET}"',
        f'["{SECRET}"]',
        f'"{SECRET}": {{"identity": "alice"}}',
        SECRET,
        SECRET * 100,
        '{"": {"identity": "alice"}}',
    ],
)
def test_keys_that_are_wrong_are_named_and_never_shown(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOBS_API_KEYS", value)
    with pytest.raises(SettingsError) as told:
        load_settings()
    assert "JOBS_API_KEYS" in str(told.value)
    assert SECRET not in str(told.value)


@pytest.mark.parametrize("name", ["CELERY_BROKER_URL", "DATABASE_URL"])
def test_a_password_in_an_address_is_never_shown(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, f"odd://user:{SECRET}@host/name")
    with pytest.raises(SettingsError) as told:
        load_settings()
    assert name in str(told.value)
    assert SECRET not in str(told.value)


@pytest.mark.parametrize("value", ["a,b", " a , b ,", '["a", "b"]', ' ["a","b"] '])
def test_a_list_is_separated_by_commas_or_json(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("JOBS_IMPORTS", "JOBS_ALLOWED_HOSTS"):
        monkeypatch.setenv(name, value)
    settings = load_settings()
    assert settings.imports == settings.allowed_hosts == ["a", "b"]


@pytest.mark.parametrize(
    ("written", "origin"),
    [
        ("https://page.example", "https://page.example"),
        ("HTTPS://Page.Example/", "https://page.example"),
        ("https://page.example:443", "https://page.example"),
        ("http://page.example:80/", "http://page.example"),
        ("http://page.example:443", "http://page.example:443"),
        ("http://[::1]:5173", "http://[::1]:5173"),
        ("*", "*"),
    ],
)
def test_an_origin_is_kept_as_browsers_spell_it(written: str, origin: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOBS_CORS_ORIGINS", written)
    assert load_settings().cors_origins == [origin]


@pytest.mark.parametrize(
    "written", ["page.example", "https://page.example/app", "https://", "https://a b", "https://a:x"]
)
def test_what_is_no_origin_is_named_with_what_to_write(written: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOBS_CORS_ORIGINS", written)
    with pytest.raises(SettingsError, match=r"JOBS_CORS_ORIGINS: .* write it as https://app\.example"):
        load_settings()


def test_keys_may_stand_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "keys.json").write_text('{"key": {"identity": "alice", "scopes": ["read"]}}', encoding="utf-8")
    monkeypatch.setenv("JOBS_API_KEYS", str(tmp_path / "keys.json"))
    assert load_settings().api_keys["key"].scopes == {"read"}

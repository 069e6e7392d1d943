"""docs/settings.md is generated, and what it says of the options is true."""

from __future__ import annotations

import re

import pytest

from celery_jobs.records.settings import Settings, environment_names
from scripts import settings_page

PROPERTIES = Settings.model_json_schema(by_alias=False)["properties"]


def test_the_page_is_what_the_settings_give() -> None:
    assert settings_page.PAGE.read_text(encoding="utf-8") == settings_page.document(), "stale; run: make docs"


def test_every_setting_has_one_row_and_no_other_name_has_one() -> None:
    rows = re.findall(r"^\| `((?:JOBS|CELERY|DATABASE)_\w+)`", settings_page.document(), re.MULTILINE)
    assert sorted(rows) == sorted(environment_names().values())


@pytest.mark.parametrize("field", PROPERTIES)
def test_every_setting_is_described(field: str) -> None:
    """What holds without it is in its default, or in words where it depends on other things."""
    schema = PROPERTIES[field]
    assert schema["description"].endswith(".")
    needs_words = schema["default"] is None and field not in ("broker_url", "result_backend")
    assert ("Without it: " in schema["description"]) == needs_words


def test_a_duration_says_its_unit_in_its_name() -> None:
    numbers = {field for field, schema in PROPERTIES.items() if "number" in str(schema)}
    assert numbers
    assert all(field.endswith("_seconds") for field in numbers)


def test_numbers_have_bounds() -> None:
    for field, schema in PROPERTIES.items():
        kind = next((each for each in schema.get("anyOf", ()) if each["type"] != "null"), schema)
        if kind["type"] in ("integer", "number"):
            assert "maximum" in kind, field
            assert {"minimum", "exclusiveMinimum"} & set(kind), field


def test_the_help_of_an_option_tells_the_default_of_its_setting() -> None:
    defaults = {
        name: settings_page.default(PROPERTIES[field]).strip("`") for field, name in environment_names().items()
    }
    told = {
        setting: text
        for _, option in settings_page.options()
        for setting, text in re.findall(r"\((\w+_\w+), ([^)]*)\)", option.help or "")
    }
    assert {"JOBS_HOST", "JOBS_PORT", "JOBS_DATA_DIR"} <= set(told)
    assert {name: text for name, text in told.items() if defaults[name] not in ("none", text)} == {}

"""Writes docs/settings.md: every setting of the service, and the option that sets it where a command has one.

`make docs` runs it; a test compares.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from typer.core import TyperGroup, TyperOption
from typer.main import get_command

from celery_jobs.api.cli import app
from celery_jobs.records.remote.settings import PREFIX, JobLibSettings
from celery_jobs.records.settings import Settings, environment_names

PAGE = Path(__file__).resolve().parents[1] / "docs" / "settings.md"

GROUPS: dict[str, tuple[str, ...]] = {
    "Servers": ("broker_url", "database", "retention_seconds", "result_backend", "data_dir"),
    "Tasks and queues": ("imports", "scheduler", "default_queue", "max_concurrency"),
    "Workers": (
        *("concurrency", "max_pool", "shutdown_timeout_seconds", "worker_timeout_seconds", "cancel_grace_seconds"),
        *("outage_patience_seconds", "metrics_port", "metrics_host"),
    ),
    "HTTP": (
        *("host", "port", "idempotency_seconds", "long_poll_max_wait_seconds", "max_body_bytes", "max_result_bytes"),
    ),
    "Who may call": ("api_keys", "insecure", "allowed_hosts", "cors_origins"),
}

_HEAD = """# Settings

Generated from `records/settings.py`, `records/remote/settings.py` and `api/cli.py`: `make docs`.

Settings are environment variables. Some are options of commands too; an option wins over the variable. An empty
variable is as good as none. A misspelt `JOBS_…`, or a value out of bounds, stops the start with a message that says
what to write. Lists are separated by commas, or are JSON.

Celery's own settings stand in `celeryconfig.py` in the working directory (or in the module that
`CELERY_CONFIG_MODULE` names); without one, built-in defaults apply. `LOG_LEVEL` (`INFO`) is how much a worker logs.
"""
_NAMED = re.compile(r"\b(?:JOBS|CELERY|DATABASE)_[A-Z_]+\b")


def document() -> str:
    """The whole page."""
    return "\n".join([_HEAD, *_groups(), *_other_options(), ""])


def _groups() -> Iterator[str]:
    fields = Settings.model_json_schema(by_alias=False)["properties"]
    names = environment_names()
    for title, members in GROUPS.items():
        yield from _table(title, {names[field]: fields[field] for field in members})
    remote = JobLibSettings.model_json_schema()["properties"]
    yield from _table("Remote workers", {f"{PREFIX}{field.upper()}": schema for field, schema in remote.items()})


def _table(title: str, schemas: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    options = options_by_setting()
    yield f"## {title}\n"
    yield "| setting | default | values | what it does | option |"
    yield "|---|---|---|---|---|"
    for name, schema in schemas.items():
        option = ", ".join(options.get(name, ()))
        yield f"| `{name}` | {default(schema)} | {values(schema)} | {_cell(schema['description'])} | {option} |"
    yield ""


def default(schema: Mapping[str, Any]) -> str:
    """What holds without the setting, as one would write it; where it depends, the description says on what."""
    value = schema["default"]
    if value in (None, [], {}):
        return "none"
    if isinstance(value, list):
        return f"`{','.join(cast('list[str]', value))}`"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def values(schema: Mapping[str, Any]) -> str:
    """What may be written."""
    kind = next((each for each in schema.get("anyOf", ()) if each["type"] != "null"), schema)
    if kind["type"] == "boolean":
        return "`true`, `false`"
    if kind["type"] in ("integer", "number"):
        return _bounds(kind)
    if "examples" in schema:
        return "such as " + " or ".join(f"`{_cell(each)}`" for each in schema["examples"])
    return "path" if kind.get("format") == "path" else "text"


def _bounds(kind: Mapping[str, Any]) -> str:
    lowest = f"more than {kind['exclusiveMinimum']:g}" if "exclusiveMinimum" in kind else f"{kind['minimum']}"
    return f"{lowest} to {kind['maximum']}"


def options_by_setting() -> dict[str, list[str]]:
    """The options whose help names a setting, with the commands that have them."""
    found: dict[tuple[str, str], list[str]] = {}
    for command, option in options():
        for setting in _NAMED.findall(option.help or ""):
            found.setdefault((setting, option.opts[0]), []).append(command)
    result: dict[str, list[str]] = {}
    for (setting, name), commands in found.items():
        result.setdefault(setting, []).append(f"`{name}` ({', '.join(commands)})")
    return result


def _other_options() -> Iterator[str]:
    yield "## Options that are no settings\n"
    yield "| command | option | what it does |"
    yield "|---|---|---|"
    for command, option in options():
        if not _NAMED.search(option.help or ""):
            name = ", ".join(f"`{each}`" for each in option.opts)
            yield f"| `{command}` | {name} | {_cell(option.help or '')} |"


def options() -> Iterator[tuple[str, TyperOption]]:
    """Every option that people see, with its command."""
    group = get_command(app)
    assert isinstance(group, TyperGroup)
    for name, command in group.commands.items():
        for option in command.params:
            if isinstance(option, TyperOption) and not option.hidden and option.name != "help":
                yield name, option


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(document(), encoding="utf-8")

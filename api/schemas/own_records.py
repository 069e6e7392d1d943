"""How JSON schema shows records of a class of one's own: its fields stand where those of `JobRecord` do."""

from __future__ import annotations

import copy
from typing import Any, Final

from pydantic.json_schema import models_json_schema

from celery_jobs.api.schemas.jobs import JobList
from celery_jobs.records.record import NOT_LISTED, JobRecord

_COMPONENTS: Final = "#/components/schemas/{model}"
_DEFINITIONS: Final = "#/$defs/{model}"
_RECORD, _LISTED = "JobRecord", "ListedJob"


def list_schema(model: type[JobRecord]) -> dict[str, Any]:
    """The schema of a list of such records."""
    schema = JobList.model_json_schema(mode="serialization")
    if model is not JobRecord:
        schema["$defs"] = _shown(schema["$defs"], model, _DEFINITIONS)
        schema["$defs"].pop(_RECORD, None)
    return schema


def show_in(schemas: dict[str, Any], model: type[JobRecord]) -> dict[str, Any]:
    """The schemas of a document with such records in place of ours."""
    return schemas if model is JobRecord else _shown(schemas, model, _COMPONENTS)


def _shown(schemas: dict[str, Any], model: type[JobRecord], template: str) -> dict[str, Any]:
    _, made = models_json_schema([(model, "serialization")], ref_template=template)
    found: dict[str, Any] = dict(made["$defs"])
    record = found.pop(model.__name__)
    listed = copy.deepcopy(record)
    for name in NOT_LISTED:
        listed["properties"].pop(name, None)
        listed["required"] = [each for each in listed.get("required", ()) if each != name]
    description = schemas.get(_LISTED, {}).get("description")
    return {
        **schemas,
        **found,
        _RECORD: {**record, "title": _RECORD},
        _LISTED: {**listed, "title": _LISTED, "description": description},
    }

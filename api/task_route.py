"""`submit_route`: one declaration gives a task its own call over HTTP (contract, section 6)."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError, create_model
from starlette.responses import Response

from celery_jobs.api.body import keyword_arguments, request_body
from celery_jobs.api.deps import JobIdDep, MayRead, SchedulerDep
from celery_jobs.api.results import result_response
from celery_jobs.api.schemas.answers import SUBMITTED, WAITED
from celery_jobs.api.schemas.jobs import Accepted, ResultView
from celery_jobs.api.schemas.problem import problems
from celery_jobs.api.stream.wait import WaitedDep
from celery_jobs.api.submission import SubmissionDep, documented
from celery_jobs.tasks.job import JobTask

Arguments = Annotated[bytes, Depends(keyword_arguments)]
_PATH: Final = re.compile(r"/[^/{}]+(/[^/{}]+)*")


class TaskRouter(APIRouter):
    """The calls of one task; `request_model` is what the document shows as the body of a submit."""

    request_model: type[BaseModel]


def submit_route(
    path: str,
    *,
    task: JobTask,
    name: str | None = None,
    tags: list[str] | None = None,
    request_model: type[BaseModel] | None = None,
    route_class: type[APIRoute] = APIRoute,
) -> TaskRouter:
    """A router that submits `task` with `POST path`, and shows what came of it with `GET path/{job_id}/result`.

    The body is the task's arguments; a `request_model` must fit it too, and it reaches the task as it came. All that
    submits take is there: 202, `Idempotency-Key`, `Prefer`, priority, tags, times. `name` (the last part of the path)
    is in `submit_<name>` and `get_<name>_result`. ValueError and TypeError for a path or a task that is none.
    """
    if not _PATH.fullmatch(path):
        raise ValueError(f"path must begin with a slash, end without one and have no parameters, not {path!r}")
    if not isinstance(task, JobTask):
        raise TypeError(f"task must be a function decorated with @job, not {task!r}")
    name = name or re.sub(r"\W", "_", path.rpartition("/")[2])
    router = TaskRouter(tags=list(tags or [name]))
    router.request_model = request_model or _model_of(task, name)
    _add_submit(router, path, task, name, request_model, route_class)
    _add_result(router, path, name)
    return router


def _add_submit(
    router: TaskRouter,
    path: str,
    task: JobTask,
    name: str,
    request_model: type[BaseModel] | None,
    route_class: type[APIRoute],
) -> None:
    async def submit(arguments: Arguments, submission: SubmissionDep) -> Response:
        return await submission.accept(task.name, _fitting(request_model, arguments))

    submit.__doc__ = f"Submit a job of the task {task.name}; the answer says where to follow it."
    router.add_api_route(
        path,
        submit,
        methods=["POST"],
        name=f"submit_{name}",
        operation_id=f"submit_{name}",
        status_code=202,
        response_model=Accepted,
        responses=SUBMITTED | problems(422, 501),
        openapi_extra=documented(request_body(router.request_model)),
        route_class_override=route_class,
    )


def _add_result(router: TaskRouter, path: str, name: str) -> None:
    async def result(job_id: JobIdDep, scheduler: SchedulerDep, waited: WaitedDep) -> Response:
        return result_response(await scheduler.result(job_id), waited)

    result.__doc__ = "What came of a job: what the task returned, once it is completed."
    router.add_api_route(
        f"{path}/{{job_id}}/result",
        result,
        methods=["GET"],
        name=f"get_{name}_result",
        operation_id=f"get_{name}_result",
        response_model=ResultView,
        responses=WAITED | problems(400, 404),
        dependencies=[MayRead],
    )


def _model_of(task: JobTask, name: str) -> type[BaseModel]:
    """The arguments under a name that tells a generated client what they are for."""
    title = "".join(part.capitalize() for part in name.split("_"))
    return create_model(f"{title}Request", __base__=task.arguments.model, __doc__=f"The arguments of {task.name}.")


def _fitting(model: type[BaseModel] | None, body: bytes) -> bytes:
    if model is None:
        return body  # the task checks it
    try:
        model.model_validate_json(body, strict=True)
    except ValidationError as error:
        faults: list[Any] = error.errors(include_url=False, include_context=False, include_input=False)
        raise RequestValidationError([{**each, "loc": ("body", *each["loc"])} for each in faults]) from None
    return body

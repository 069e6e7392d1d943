"""The routes of the second API raise ProblemException, which any host app can answer; and call endpoints quickly."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Final

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from celery_jobs.api.joblib import dependencies
from celery_jobs.api.joblib.dependencies import Call
from celery_jobs.api.joblib.problems import ProblemException
from celery_jobs.api.joblib.runtime import runtime_of
from celery_jobs.records.errors import JobsError

Handler = Callable[[Request], Coroutine[Any, Any, Response]]
_OVERRIDABLE: Final = (
    dependencies.get_db_session,
    dependencies.get_current_identity,
    dependencies.get_is_admin,
)


class JoblibRoute(APIRoute):
    """A route whose errors are problems wherever it is mounted."""

    def get_route_handler(self) -> Handler:
        """The endpoint, with its errors passed on as problems."""
        handle = super().get_route_handler()

        async def handled(request: Request) -> Response:
            try:
                return await handle(request)
            except (JobsError, RequestValidationError) as error:
                raise ProblemException(error) from error

        return handled


class PlainRoute(JoblibRoute):
    """A route that workers call all the time: `endpoint(call, **path_params)`, which reads the body by itself.

    Without overrides the framework's resolver, a quarter of the whole answer, is left out.
    """

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer by the endpoint itself, or as the framework does."""
        if scope["method"] in self.methods and _is_plain(scope["app"]):
            response = await self._answer(Request(scope, receive, send))
            await response(scope, receive, send)
        else:
            await super().handle(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        try:
            return await self.endpoint(call=await _call(request), **request.path_params)
        except (JobsError, RequestValidationError) as error:
            raise ProblemException(error) from error


def _is_plain(app: Any) -> bool:
    """Whether it is this service, with its own middleware around all routes, and nothing of it overridden."""
    if not getattr(app.state, "guarded", False):
        return False
    overridden = app.dependency_overrides
    return not overridden or not any(each in overridden for each in _OVERRIDABLE)


async def _call(request: Request) -> Call:
    identity = await dependencies.get_current_identity(request)
    admin = await dependencies.get_is_admin(request)
    runtime = runtime_of(request.app)
    return Call(request, identity, admin, dependencies.records_of(request, None, runtime), runtime)

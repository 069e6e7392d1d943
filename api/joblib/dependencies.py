"""What a host app overrides, and what every route is given: who calls, and the database (contract, section 8)."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

from fastapi import Depends, Request

from celery_jobs.api import auth
from celery_jobs.api.auth import Caller
from celery_jobs.api.joblib.access import HostRecords, OwnRecords, Records
from celery_jobs.api.joblib.runtime import Runtime, runtime_of
from celery_jobs.api.problems import Forbidden, Unauthorized
from celery_jobs.records.errors import SettingsError
from celery_jobs.records.remote.workers import Who
from celery_jobs.records.settings import Settings

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession

_REPORTING: Final = "/tasks/"
_ONLY_CANCELS: Final = "celery_jobs.only_cancels"


async def get_db_session() -> AsyncGenerator[Any]:
    """An SQLAlchemy AsyncSession of the host app; this service has a database of its own, and needs none."""
    yield None


async def get_current_identity(request: Request) -> str:
    """Who calls: the identity of the API key, unless the host app says it."""
    caller, scopes = _caller(request), _scopes(request)
    if not any(map(caller.may, scopes)):
        raise Forbidden(caller.identity, f"the scope {' or '.join(map(repr, scopes))}")
    request.scope[_ONLY_CANCELS] = not caller.may(scopes[0])
    return caller.identity


async def get_is_admin(request: Request) -> bool:
    """Whether who calls is an admin, by the API key unless the host app says it."""
    try:
        return _caller(request).admin
    except Unauthorized:  # where the host says who calls; without it that was refused already
        return False


def _caller(request: Request) -> Caller:
    if getattr(request.app.state, "guarded", False):
        return auth.caller_of(request)
    return auth.caller_in_host(request, runtime_of(request.app).keys)


def _scopes(request: Request) -> tuple[str, ...]:
    """Any of which a key must have: workers submit reports, and who has but the second may cancel."""
    if request.method in ("GET", "HEAD"):
        return ("read",)
    reports = request.method == "PATCH" and _REPORTING in request.scope["path"]
    return ("submit", "cancel") if reports else ("submit",)


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the second API: who makes it, on which database, in which process."""

    request: Request
    identity: str
    admin: bool
    records: Records
    runtime: Runtime

    @property
    def most_result_bytes(self) -> int:
        """A larger result fails its task."""
        scheduler = self.records.scheduler
        return (
            Settings.model_fields["max_result_bytes"].default
            if scheduler is None
            else scheduler.settings.max_result_bytes
        )

    @property
    def lease_seconds(self) -> float:
        """How long a worker counts as alive after each sign of life."""
        return self.runtime.settings.worker_timeout_seconds

    def demand_reporter(self) -> None:
        """Forbidden for a key that may cancel tasks and nothing else."""
        if self.request.scope.get(_ONLY_CANCELS, False):
            raise Forbidden(self.identity, "the scope 'submit'")

    def who(self, worker_id: str | None = None) -> Who:
        """The caller as a worker."""
        return Who(self.identity, self.admin, worker_id)


async def get_call(
    request: Request,
    session: Annotated[Any, Depends(get_db_session)],
    identity: Annotated[str, Depends(get_current_identity)],
    admin: Annotated[bool, Depends(get_is_admin)],
) -> Call:
    """The dependency of every route."""
    runtime = runtime_of(request.app)
    return Call(request, identity, admin, records_of(request, session, runtime), runtime)


def records_of(request: Request, session: AsyncSession | None, runtime: Runtime) -> Records:
    """The session's database, or that of this service; SettingsError in a host app that gives no session."""
    if session is not None:
        return HostRecords(session, runtime.changed)
    scheduler = getattr(request.app.state, "scheduler", None)
    if scheduler is None:
        raise SettingsError("The application gives no database session: override get_db_session")
    return OwnRecords(scheduler)


CallDep = Annotated[Call, Depends(get_call)]


@dataclass(frozen=True, slots=True)
class Visit:
    """A call of which nobody needs to know by whom it is made."""

    records: Records
    runtime: Runtime


async def get_visit(request: Request, session: Annotated[Any, Depends(get_db_session)]) -> Visit:
    """The dependency of what is open to all."""
    runtime = runtime_of(request.app)
    return Visit(records_of(request, session, runtime), runtime)


VisitDep = Annotated[Visit, Depends(get_visit)]

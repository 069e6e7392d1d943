"""The routers of the second API, as one that any app may include."""

from __future__ import annotations

from fastapi import APIRouter

from celery_jobs.api.joblib import problems, rooms, tasks, workers
from celery_jobs.api.joblib.declared import problems as declared
from celery_jobs.api.joblib.dependencies import CallDep
from celery_jobs.api.joblib.route import JoblibRoute
from celery_jobs.api.joblib.views import Me

PREFIX = "/v1/joblib"

api = APIRouter(prefix=PREFIX, tags=["remote workers"])
for part in (rooms.plain, rooms.router, tasks.plain, workers.plain, workers.router):
    api.include_router(part)

router = APIRouter()
router.include_router(api)
router.include_router(problems.pages)

# a host app says who is calling at this address itself
me = APIRouter(route_class=JoblibRoute, tags=["remote workers"])


@me.get("/v1/me", responses=declared())
async def get_me(call: CallDep) -> Me:
    """Who is calling: the identity of the key."""
    return Me(id=call.identity)

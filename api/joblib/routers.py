"""The routers of the second API, as one that any app may include."""

from __future__ import annotations

from fastapi import APIRouter

from celery_jobs.api.joblib import rooms, tasks, workers
from celery_jobs.api.joblib.declared import refusals
from celery_jobs.api.joblib.dependencies import CallDep
from celery_jobs.api.joblib.host_life import waits_end_with_it
from celery_jobs.api.joblib.problems import pages
from celery_jobs.api.joblib.route import JoblibRoute
from celery_jobs.api.joblib.views import Me

PREFIX = "/v1/joblib"

# what workers call all the time, and the others
BUSY, OTHERS = tasks.plain, (rooms.plain, rooms.router, workers.plain, workers.router)
TAG = "remote workers"

router = APIRouter(lifespan=waits_end_with_it)
for part in (BUSY, *OTHERS):
    router.include_router(part, prefix=PREFIX, tags=[TAG])
router.include_router(pages)

__all__ = ["BUSY", "OTHERS", "PREFIX", "TAG", "me", "pages", "router"]

# a host app says who is calling at this address itself
me = APIRouter(route_class=JoblibRoute, tags=[TAG])


@me.get("/v1/me", responses=refusals())
async def get_me(call: CallDep) -> Me:
    """Who is calling: the identity of the key."""
    return Me(id=call.identity)

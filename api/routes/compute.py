"""The example task's calls."""

from __future__ import annotations

from celery_jobs.api.submission import SubmitRoute
from celery_jobs.api.task_route import submit_route
from celery_jobs.tasks.compute import compute

# benchmarks measure by it, so it goes without what dependencies of a router around it would need
router = submit_route("/compute", task=compute, route_class=SubmitRoute)

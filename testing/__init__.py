"""For the tests of people who write tasks: what the fixture `jobs_service` gives, and direct calls as if in a job."""

from celery_jobs.testing.direct import DirectRun, running
from celery_jobs.testing.job import Job, wait_for
from celery_jobs.testing.service import JobsService

__all__ = ["DirectRun", "Job", "JobsService", "running", "wait_for"]

"""Celery: the app, `@job`, what runs in a worker, publishing, cancelling, limits, sweeping."""

from celery_jobs.tasks.celery import app
from celery_jobs.tasks.context import JobCanceled, current_job
from celery_jobs.tasks.job import JobTask, job

__all__ = ["JobCanceled", "JobTask", "app", "current_job", "job"]

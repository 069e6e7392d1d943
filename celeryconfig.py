"""The deployment's Celery settings: the service's defaults, and below them what this deployment changes."""

from celery_jobs.tasks.defaults import *  # noqa: F403

# task_time_limit = 3600

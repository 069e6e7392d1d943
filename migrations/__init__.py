"""The schema's history: Alembic scripts that ship with the package.

A script is named `<number>_<word>.py` and its revision is that number, so that which revisions this code knows, and
which is the newest, can be read from the folder without loading Alembic (`celery_jobs.records.migrate`).
"""

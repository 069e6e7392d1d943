"""Measures the service beside what it is built from: bare FastAPI and bare Celery, in one run on one machine."""

"""A scheduler alone in a program."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from celery_jobs.api import CeleryScheduler
from celery_jobs.records.settings import Settings


@pytest.fixture
async def scheduler(tmp_path: Path) -> AsyncIterator[CeleryScheduler]:
    settings = Settings(data_dir=tmp_path, shutdown_timeout_seconds=0)
    async with CeleryScheduler(settings=settings) as scheduler:
        yield scheduler

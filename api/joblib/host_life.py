"""The second API within the life of a host app: who waits is answered when the process is told to end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Any

from celery_jobs.api.signals import heard_before_the_server


@contextlib.asynccontextmanager
async def waits_end_with_it(app: Any) -> AsyncGenerator[None]:
    """The lifespan of the mountable router, which the framework puts within the host's."""
    loop = asyncio.get_running_loop()
    with heard_before_the_server(lambda _again: loop.call_soon_threadsafe(_close, app)):
        yield


def _close(app: Any) -> None:
    runtime = getattr(app.state, "joblib", None)
    if runtime is not None:  # otherwise nobody ever waited
        runtime.close()

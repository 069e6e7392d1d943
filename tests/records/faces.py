"""The sync and the async store behind one face, so that a test body is written once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

from sqlalchemy import Connection

from celery_jobs.records.store import AsyncStore, Store

P = ParamSpec("P")
T = TypeVar("T")
Work = Callable[Concatenate[Connection, P], T]


class Face:
    """The sync face; `store` is what a worker uses."""

    def __init__(self, url: str, *, patience_seconds: float = 0.0) -> None:
        self.url = url
        self.store = Store(url, patience_seconds=patience_seconds)

    @property
    def sqlite(self) -> bool:
        return self.store.writer is not None

    def read(self, work: Work[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return self.store.read(work, *args, **kwargs)

    def write(self, work: Work[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return self.store.write(work, *args, **kwargs)

    def close(self) -> None:
        self.store.close()


class AsyncFace(Face):
    """The async face, on an event loop in a thread of its own."""

    def __init__(self, url: str, *, patience_seconds: float = 0.0) -> None:
        super().__init__(url, patience_seconds=patience_seconds)
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        self.async_store = AsyncStore(self.store)

    def wait_for(self, answer: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(answer, self.loop).result(60)

    def read(self, work: Work[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return self.wait_for(self.async_store.read(work, *args, **kwargs))

    def write(self, work: Work[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return self.wait_for(self.async_store.write(work, *args, **kwargs))

    def close(self) -> None:
        self.wait_for(self.async_store.close())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10)
        self.loop.close()
        super().close()

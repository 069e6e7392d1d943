"""A worker's own metrics: one port for the whole node, also where its jobs run in many processes (contract, section 3).

The children of a prefork pool count in files, one a slot of the pool and not one a process: whoever replaces a child
goes on with its numbers, so nothing is lost and nothing piles up, however many children come and go.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import threading
from collections.abc import Generator
from pathlib import Path
from socketserver import ThreadingTCPServer
from typing import Any

from billiard.process import current_process

from celery_jobs.records.errors import SettingsError
from celery_jobs.records.settings import Settings
from celery_jobs.tasks import metrics

_IDLE_CLIENT_SECONDS = 10.0

_name = ""  # this process among those of the folder
_server: _Server | None = None


@contextlib.contextmanager
def counting(settings: Settings, folder: Path | None) -> Generator[None]:
    """Count in this worker: for its own port where one is set, else for whoever serves `folder`, else not at all.

    Enter it before any task is imported. SettingsError when the port cannot be had.
    """
    global _server
    with contextlib.ExitStack() as stack:
        if settings.metrics_port is not None:
            _server = _Server(settings.metrics_host, settings.metrics_port)
            stack.callback(_server.server_close)
            folder = stack.enter_context(metrics.shared_folder())
        if folder is not None:
            _count_into(folder)
        if _server is not None:
            stack.enter_context(_server.serving())
        yield


def become_child() -> None:
    """In a forked child: count under the name of its slot in the pool, and leave the port to the main process."""
    global _name
    if not _name:
        return
    child: Any = current_process()
    _name = f"{_name}-{child.index}"
    if _server is not None:
        _server.socket.close()


def _count_into(folder: Path) -> None:
    global _name
    os.environ[metrics.FOLDER] = str(folder)  # before prometheus_client is imported, which looks for it then
    from prometheus_client import values

    _name = f"worker{os.getpid()}"  # no bare number: those are the names of processes that count by themselves
    values.ValueClass = values.MultiProcessValue(lambda: _name)
    metrics.enable()


class _Server(ThreadingTCPServer):
    """Answers every GET with the numbers of the folder."""

    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 32

    def __init__(self, host: str, port: int) -> None:
        try:
            self.address_family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            super().__init__((str(address[0]), port), _handler())
        except OSError as error:
            raise SettingsError(_why_not(error, host, port)) from None

    @contextlib.contextmanager
    def serving(self) -> Generator[None]:
        """Answer in the background, and say where."""
        host, port = self.server_address[:2]
        where = f"[{host}]" if ":" in str(host) else host
        print(f"Serving metrics on http://{where}:{port}/metrics", flush=True)
        threading.Thread(target=self.serve_forever, name="metrics", daemon=True).start()
        try:
            yield
        finally:
            self.shutdown()


def _handler() -> type[Any]:
    from prometheus_client import CollectorRegistry, MetricsHandler

    registry = CollectorRegistry()
    registry.register(_Counted())
    return type("Handler", (MetricsHandler.factory(registry),), {"timeout": _IDLE_CLIENT_SECONDS})


class _Counted:
    """What prometheus_client asks for metrics."""

    def collect(self) -> Any:
        """All that this worker's processes counted."""
        return metrics.counted()

    def describe(self) -> Any:
        """Nothing yet: the names are asked for when this is registered, and are known to clash with nobody's."""
        return ()


def _why_not(error: OSError, host: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"Port {port} on {host} is in use. Each worker needs a port of its own for its metrics: "
            "choose another with --metrics-port (JOBS_METRICS_PORT), or 0 for any free one."
        )
    reason = error.strerror or str(error)
    return f"Cannot serve metrics on {host}, port {port}: {reason}. See --metrics-port and JOBS_METRICS_HOST."

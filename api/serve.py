"""Serving HTTP with uvicorn on a socket that is bound before anything else starts (contract, section 9)."""

from __future__ import annotations

import errno
import ipaddress
import logging
import os
import signal
import socket
import sys
from pathlib import Path
from types import FrameType
from typing import Any, Final

import uvicorn
from fastapi import FastAPI
from uvicorn.config import STARTUP_FAILURE
from uvicorn.supervisors import Multiprocess

from celery_jobs.records.errors import JobsError, SettingsError
from celery_jobs.records.settings import Settings
from celery_jobs.tasks import metrics
from celery_jobs.tasks.lifeline import stop_with_parent

CANNOT_START: Final = 2
_LOG_FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"
# a request that is still open when the service stops is cut after this; streams have ended long before
_OPEN_REQUESTS_SECONDS: Final = 3


def listen(settings: Settings) -> socket.socket:
    """The socket to serve on; SettingsError for a port that is taken, and for an address that others reach unchecked.

    It listens when the server has started: until then clients are refused and go to another process, and wait for none.
    """
    host, port = settings.host, settings.port
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        _demand_keys(settings, str(address[0]))
        return _bound(family, (str(address[0]), port))
    except OSError as error:
        raise SettingsError(_why_not(error, host, port)) from None


def _bound(family: int, address: tuple[str, int]) -> socket.socket:
    listener = socket.socket(family)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a restart need not wait for old connections
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(address)
    except OSError:
        listener.close()
        raise
    return listener


def inherit(descriptor: int) -> socket.socket:
    """The listening socket that the parent process has bound."""
    return socket.socket(fileno=descriptor)


def run(settings: Settings, listener: socket.socket, workers: int = 1) -> int:
    """Serve until SIGTERM or SIGINT; the exit code."""
    _exit_quietly_on_sigterm()
    stop_with_parent()
    # what Celery's worker and the tasks say; uvicorn has handlers of its own
    logging.basicConfig(level=(os.environ.get("LOG_LEVEL") or "WARNING").upper(), format=_LOG_FORMAT)
    if workers > 1:
        return _run_several(listener, workers)
    return _run_here(settings, listener)


def _run_several(listener: socket.socket, workers: int) -> int:
    config = _config("celery_jobs.api.serve:create_child_app", factory=True, workers=workers)
    with metrics.shared_folder() as folder:
        os.environ[metrics.FOLDER] = str(folder)
        print(f"Serving on {url_of(listener)} with {workers} processes", flush=True)
        supervisor = _Supervisor(config, [listener], folder)
        supervisor.run()
    return CANNOT_START if any(process.exitcode == STARTUP_FAILURE for process in supervisor.processes) else 0


def create_child_app() -> FastAPI:
    """The app of one of several processes, which end with the one that started them."""
    from celery_jobs.api.app import create_app

    stop_with_parent()
    return create_app()


class _Supervisor(Multiprocess):
    """Keeps the processes alive, and the metrics that they share free of those that have gone."""

    def __init__(self, config: uvicorn.Config, sockets: list[socket.socket], folder: Path) -> None:
        super().__init__(config, sockets)
        self._folder = folder

    def keep_subprocess_alive(self) -> None:
        super().keep_subprocess_alive()
        metrics.forget_streams_of_the_dead(self._folder, {process.pid for process in self.processes})


class _Server(uvicorn.Server):
    """Says where it serves, in a form that can be clicked."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if _told_to_end:
            self.should_exit = True
            return
        await super().startup(sockets)
        if self.started and sockets:
            address = url_of(sockets[0])
            print(f"Serving on {address} (API documentation: {address}/docs)", flush=True)


def _run_here(settings: Settings, listener: socket.socket) -> int:
    from celery_jobs.api.app import create_app

    app = create_app(settings)

    def failure() -> JobsError | None:
        return getattr(app.state, "startup_failure", None)

    server = _Server(_config(app))
    logging.getLogger("uvicorn.error").addFilter(lambda _record: failure() is None)  # the command says it itself
    try:
        server.run(sockets=[listener])
    except KeyboardInterrupt:
        return 0
    except SystemExit as end:
        error = failure()
        if error is not None:
            raise error from None
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


def _config(app: Any, **options: Any) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        access_log=False,
        lifespan="on",
        log_level="warning",
        timeout_graceful_shutdown=_OPEN_REQUESTS_SECONDS,
        **options,
    )


def url_of(listener: socket.socket) -> str:
    """Where a socket listens, as an address for a browser."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _exit_quietly_on_sigterm() -> None:
    # uvicorn raises the signal again when it has stopped; by default that would end the process as if it had crashed
    signal.signal(signal.SIGTERM, _exit)


_told_to_end = False


def _exit(_number: int, _frame: FrameType | None) -> None:
    global _told_to_end
    _told_to_end = True
    sys.exit(0)  # Python drops it where the signal meets the end of an object: then the start is not finished


def _demand_keys(settings: Settings, address: str) -> None:
    if settings.api_keys or settings.insecure or ipaddress.ip_address(address.partition("%")[0]).is_loopback:
        return
    raise SettingsError(
        f"Refusing to listen on {settings.host}, which other machines may reach, without API keys: everybody would be "
        "an admin. Set JOBS_API_KEYS, listen on 127.0.0.1, or allow it with --insecure (JOBS_INSECURE=true)."
    )


def _why_not(error: OSError, host: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"Port {port} on {host} is in use. Stop what listens there, or choose another with --port (JOBS_PORT)."
    if error.errno == errno.EACCES:
        return f"Port {port} may not be used by this user. Choose one above 1023 with --port (JOBS_PORT)."
    reason = error.strerror or str(error)
    return f"Cannot listen on {host}: {reason}. Choose an address of this machine with --host (JOBS_HOST)."

"""A foreign HTTP server that answers by a script, such as one that does not wait, or a proxy with pages of its own."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.support.ports import free_port


@dataclass(frozen=True)
class Asked:
    """A request as it came in."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any
    at: float


@dataclass(frozen=True)
class Said:
    """What to answer; text goes out as it is, anything else as JSON."""

    status: int = 200
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict[str, str])


Script = Callable[[Asked], Said]


class ScriptedServer:
    """Answers as its script says, and remembers what it was asked."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.asked: list[Asked] = []
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"

    def times(self, method: str, path: str) -> list[float]:
        """When it was asked for this."""
        return [each.at for each in self.asked if (each.method, each.path) == (method, path)]

    @contextmanager
    def serving(self) -> Generator[ScriptedServer]:
        """Answers meanwhile."""
        server = ThreadingHTTPServer(("127.0.0.1", self.port), _handler(self))
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            server.shutdown()
            server.server_close()
            thread.join()


def _handler(scripted: ScriptedServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            content = self.rfile.read(int(self.headers.get("content-length") or 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            body = json.loads(content) if content else None
            asked = Asked(self.command, self.path, headers, body, time.monotonic())
            scripted.asked.append(asked)
            said = scripted.script(asked)
            sent = said.body if isinstance(said.body, str) else json.dumps(said.body)
            self.send_response(said.status)
            for name, value in said.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(sent)))
            self.end_headers()
            self.wfile.write(sent.encode())

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = answer

        def log_message(self, format: str, *args: Any) -> None:
            """Quiet: what was asked is remembered."""

    return Handler

"""A TCP proxy before a server, which fails as networks do: refuses, goes silent, cuts, or cuts just after a commit."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Self

from tests.support.ports import free_port

Looks = Callable[[bytes], bool]
_CHUNK = 1 << 16


def says(*texts: str) -> Looks:
    """True for bytes of a client that hold one of these texts."""
    return lambda data: any(text.encode() in data for text in texts)


class Proxy:
    """Listens on a port of 127.0.0.1 and passes on what clients and the server behind `port` say to each other."""

    def __init__(self, port: int) -> None:
        self.port = free_port()
        self.cuts = 0  # connections that lost the server's answer
        self._server_port = port
        self._listener: socket.socket | None = None
        self._pairs: set[_Pair] = set()
        self._lock = threading.Lock()
        self._passing = threading.Event()
        self._passing.set()
        self._lose: Looks | None = None
        self._lose_commit_of: Looks | None = None
        self._then_refuse = False
        self._ended = threading.Event()

    # --- faults

    def refuse(self) -> None:
        """Cut every connection and take no more, as a server that is down."""
        self._close()
        self.cut()

    def _close(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
            listener.close()

    def accept(self) -> None:
        """Take connections (again)."""
        self._listener = socket.create_server(("127.0.0.1", self.port), backlog=256)
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def cut(self) -> None:
        """Reset every open connection; new ones work."""
        with self._lock:
            pairs, self._pairs = self._pairs, set()
        for pair in pairs:
            pair.reset()

    def lead_to(self, port: int) -> None:
        """New connections go to the server behind this port."""
        self._server_port = port

    def silence(self) -> None:
        """Take connections and bytes, and pass on nothing more, on any connection."""
        self._passing.clear()

    def speak(self) -> None:
        """Pass on what was held back, as a server that was frozen answers at last."""
        self._passing.set()

    def deafen(self) -> None:
        """The connections that are open now stay so and stay silent for ever; new ones work."""
        with self._lock:
            for pair in self._pairs:
                pair.deaf = True
            self._pairs = set()

    def lose_answer(self, to: Looks) -> None:
        """Let the server do the next thing that a client asks in these words, and cut before it answers."""
        self._lose, self._lose_commit_of = to, None

    def lose_answer_to_commit_of(self, statement: Looks, *, then_refuse: bool = False) -> None:
        """The same for the commit of a transaction that holds such a statement; with the server gone after it?"""
        self._lose, self._lose_commit_of, self._then_refuse = None, statement, then_refuse

    # --- life

    @contextmanager
    def serving(self) -> Generator[Self]:
        """Accepting at the beginning, everything closed at the end."""
        self.accept()
        try:
            yield self
        finally:
            self._ended.set()
            self.speak()
            self.refuse()

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                threading.Thread(target=self._connect, args=(client,), daemon=True).start()

    def _connect(self, client: socket.socket) -> None:
        self._passing.wait()
        try:
            server = socket.create_connection(("127.0.0.1", self._server_port), timeout=5)
        except OSError:
            client.close()
            return
        server.settimeout(None)
        pair = _Pair(client, server)
        with self._lock:
            self._pairs.add(pair)
        for source, target, asks in ((client, server, True), (server, client, False)):
            threading.Thread(target=self._pump, args=(pair, source, target, asks), daemon=True).start()

    def _pump(self, pair: _Pair, source: socket.socket, target: socket.socket, asks: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(_CHUNK):
                self._passing.wait()
                if pair.deaf:
                    self._ended.wait()
                    break
                if not asks and pair.loses_answer:
                    break  # the server has done it
                if asks and self._loses(pair, data):
                    pair.loses_answer = True
                target.sendall(data)
        if pair.loses_answer and not asks:
            self.cuts += 1
            if self._then_refuse:
                self._close()
        with self._lock:
            self._pairs.discard(pair)
        pair.reset()

    def _loses(self, pair: _Pair, data: bytes) -> bool:
        with self._lock:
            if self._lose_commit_of is not None and self._lose_commit_of(data):
                self._lose_commit_of = None
                pair.loses_commit = True
            elif pair.loses_commit and b"COMMIT" in data:
                return True
            elif self._lose is not None and self._lose(data):
                self._lose = None
                return True
            return False


class _Pair:
    """The two ends of one connection."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.deaf = False
        self.loses_answer = False
        self.loses_commit = False
        self._sockets = client, server
        for each in self._sockets:
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def reset(self) -> None:
        """Close both ends, the client's with a reset."""
        client, server = self._sockets
        for each in (client, server):
            with contextlib.suppress(OSError):
                if each is client:
                    each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                each.shutdown(socket.SHUT_RDWR)
            each.close()

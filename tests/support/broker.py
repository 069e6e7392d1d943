"""What an operator with redis-cli can do to the messages of the service."""

from __future__ import annotations

import base64
import json
from collections.abc import Generator
from contextlib import contextmanager

import redis

from tests.support.stack import Stack
from tests.support.waiting import wait_until

QUEUE = "jobs"


class Broker:
    """The Redis database that carries the messages of one deployment."""

    def __init__(self, client: redis.Redis) -> None:
        self.client = client

    def keys(self, queue: str = QUEUE) -> list[bytes]:
        """The lists of a queue, one per priority that the transport keeps apart."""
        names: list[bytes] = self.client.keys(f"{queue}*")  # type: ignore[assignment]
        return sorted(name for name in names if self.client.type(name) == b"list")

    def messages(self, job_id: str | None = None, queue: str = QUEUE) -> list[tuple[bytes, bytes]]:
        """(list, message) of what lies in the queue, of one job or of all."""
        found: list[tuple[bytes, bytes]] = []
        for key in self.keys(queue):
            bodies: list[bytes] = self.client.lrange(key, 0, -1)  # type: ignore[assignment]
            found += [(key, body) for body in bodies if job_id in (None, _job_of(body))]
        return found

    def wait_message(self, job_id: str, queue: str = QUEUE) -> tuple[bytes, bytes]:
        """The queued message of a job, once it is there."""
        return wait_until(lambda: self.messages(job_id, queue), f"the message of {job_id} is queued")[0]

    def push(self, key: bytes, message: bytes, copies: int = 1) -> None:
        """Deliver it again: a copy that the broker keeps apart, as after a lost acknowledgement."""
        for _ in range(copies):
            self.client.lpush(key, message)

    def remove(self, job_id: str, queue: str = QUEUE) -> int:
        """Lose the messages of a job."""
        return sum(int(self.client.lrem(key, 0, body)) for key, body in self.messages(job_id, queue))  # type: ignore[arg-type]


def _job_of(message: bytes) -> str:
    whole = json.loads(message)
    return whole["headers"]["id"] if "id" in whole["headers"] else json.loads(base64.b64decode(whole["body"]))["id"]


@contextmanager
def open_broker(stack: Stack) -> Generator[Broker]:
    """A connection to the messages of a deployment."""
    with redis.Redis.from_url(stack.service.env["CELERY_BROKER_URL"], socket_timeout=5) as client:
        yield Broker(client)

"""Ways in which a broker fails under the service, and comes back."""

from __future__ import annotations

from abc import ABC, abstractmethod

from tests.support.redis import RedisServer


class Outage(ABC):
    """Begins and ends; `keeps` says whether the messages that lay there are still there afterwards."""

    keeps = True
    degrades = True  # health can see it for as long as it lasts

    def server(self) -> RedisServer:
        """A server that can fail like this, not started."""
        return RedisServer()

    @abstractmethod
    def begin(self, redis: RedisServer) -> None: ...

    @abstractmethod
    def end(self, redis: RedisServer) -> None: ...

    def __str__(self) -> str:
        return type(self).__name__.lower()


class Crashed(Outage):
    """Killed, and back at its old address with nothing in it."""

    keeps = False

    def begin(self, redis: RedisServer) -> None:
        redis.kill9()

    def end(self, redis: RedisServer) -> None:
        redis.start()


class Restarted(Outage):
    """Shut down in good order, and back with all it had."""

    def server(self) -> RedisServer:
        return RedisServer(persistent=True)

    def begin(self, redis: RedisServer) -> None:
        redis.stop()

    def end(self, redis: RedisServer) -> None:
        redis.start()


class Silent(Outage):
    """Connections stay open and can even be made, and nothing answers."""

    def begin(self, redis: RedisServer) -> None:
        redis.pause()

    def end(self, redis: RedisServer) -> None:
        redis.resume()


class Full(Outage):
    """Answers, and refuses whatever needs memory."""

    def begin(self, redis: RedisServer) -> None:
        with redis.client() as client:
            client.config_set("maxmemory-policy", "noeviction")
            client.config_set("maxmemory", "1")

    def end(self, redis: RedisServer) -> None:
        with redis.client() as client:
            client.config_set("maxmemory", "0")


class Replica(Outage):
    """What a failover makes of the old master: it answers, and refuses every write."""

    def begin(self, redis: RedisServer) -> None:
        with redis.client() as client:
            client.execute_command("REPLICAOF", "127.0.0.1", "1")

    def end(self, redis: RedisServer) -> None:
        with redis.client() as client:
            client.execute_command("REPLICAOF", "NO", "ONE")


class Cut(Outage):
    """Every connection is closed once, as by a firewall or an operator; new ones can be made at once."""

    degrades = False

    def begin(self, redis: RedisServer) -> None:
        with redis.client() as client:
            client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            client.execute_command("CLIENT", "KILL", "TYPE", "pubsub")

    def end(self, redis: RedisServer) -> None:
        self.begin(redis)

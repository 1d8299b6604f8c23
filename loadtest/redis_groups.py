"""Several servers as one: a primary with a replica and a sentinel, and a cluster with replicas. All on loopback."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from loadtest.ports import free_ports
from loadtest.redis_server import RedisServer

SERVICE = "kv"
_SLOTS = 16384


def wait_until(condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
    until = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > until:
            raise TimeoutError
        time.sleep(0.05)


class _Several(ABC):
    def __init__(self) -> None:
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    @abstractmethod
    def _start(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stack.close()


class WatchedServers(_Several):
    """``first`` is the primary at the start; a sentinel promotes ``second`` when it is gone for half a second."""

    def __init__(self, binary: str | None = None) -> None:
        super().__init__()
        self.first = RedisServer(binary)
        self.second = RedisServer(binary, f"replicaof 127.0.0.1 {self.first.port}")
        self.sentinel = RedisServer(
            binary,
            f"sentinel monitor {SERVICE} 127.0.0.1 {self.first.port} 1",
            f"sentinel down-after-milliseconds {SERVICE} 500",
            f"sentinel failover-timeout {SERVICE} 2000",
            arguments=("--sentinel",),
        )
        dead = RedisServer(binary)
        self.url = f"redis+sentinel://127.0.0.1:{dead.port},127.0.0.1:{self.sentinel.port}/{SERVICE}"
        """Its first sentinel is not there."""

    def _start(self) -> None:
        for server in (self.first, self.second, self.sentinel):
            self._stack.enter_context(server)
        wait_until(lambda: b"slave0" in self.first.command("INFO", "replication"))
        wait_until(lambda: b"num-slaves\r\n$1\r\n1" in self.sentinel.command("SENTINEL", "MASTER", SERVICE))


class ClusterServers(_Several):
    """Three primaries, and a replica of the first."""

    def __init__(self, binary: str | None = None) -> None:
        super().__init__()
        self.primaries = [_member(binary) for _ in range(3)]
        self.replica = _member(binary, "cluster-replica-validity-factor 0")
        self.url = "redis+cluster://" + ",".join(f"127.0.0.1:{server.port}" for server in self.primaries)

    def _start(self) -> None:
        everyone = [*self.primaries, self.replica]
        for server in everyone:
            self._stack.enter_context(server)
        share = -(-_SLOTS // len(self.primaries))
        for number, server in enumerate(self.primaries):
            first, last = number * share, min((number + 1) * share, _SLOTS) - 1
            if server.command("CLUSTER", "ADDSLOTSRANGE", str(first), str(last)) != b"+OK\r\n":
                raise RuntimeError("the cluster's node does not take its slots")
            server.command("CLUSTER", "SET-CONFIG-EPOCH", str(number + 1))
        for server in everyone[1:]:
            server.command("CLUSTER", "MEET", "127.0.0.1", *_ports(self.primaries[0]))
        wait_until(lambda: all(b"cluster_known_nodes:4" in server.command("CLUSTER", "INFO") for server in everyone))
        wait_until(lambda: all(b"cluster_state:ok" in server.command("CLUSTER", "INFO") for server in everyone))
        myself = self.primaries[0].command("CLUSTER", "MYID").split(b"\r\n")[1].decode()
        wait_until(lambda: self.replica.command("CLUSTER", "REPLICATE", myself) == b"+OK\r\n")
        wait_until(lambda: b"master_link_status:up" in self.replica.command("INFO", "replication"))


def _member(binary: str | None, *options: str) -> RedisServer:
    always = ("cluster-enabled yes", "cluster-node-timeout 1000", "cluster-require-full-coverage no")
    # The bus's usual port, 10,000 above, may be none. By default a primary waits seconds for more replicas to copy to.
    more = (f"cluster-port {free_ports(1)}", "repl-diskless-sync-delay 0")
    return RedisServer(binary, *always, *more, *options)


def _ports(server: RedisServer) -> tuple[str, str]:
    return str(server.port), server.option("cluster-port")

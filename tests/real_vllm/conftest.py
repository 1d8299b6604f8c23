"""The servers that these tests share: one group runs at a time, and tests are ordered so that each group starts once.

`FULL=1` runs everything; without it tests marked `full` are left out and the long workloads are shorter.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from tests.real_vllm.build import CACHE, ENGINE_PYTHON, FULL, MODEL, unsupported
from tests.real_vllm.engines import Engine, Spec, start_all

TOOLS = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")
ADAPTERS = (
    "--enable-lora",
    "--max-lora-rank",
    "8",
    "--lora-modules",
    f"lora-a={MODEL / 'lora-a'}",
    f"lora-b={MODEL / 'lora-b'}",
)
# Two engines that agree in nothing that the router must not depend on: hash algorithm, and hashes as ints or as bytes.
AGGREGATED = (
    Spec("both-0", (*TOOLS, *ADAPTERS, "--enable-scale-out")),
    Spec(
        "both-1",
        (*TOOLS, *ADAPTERS, "--enable-scale-out", "--prefix-caching-hash-algo", "xxhash_cbor"),
        environment=(("VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES", "0"),),
    ),
)
LEASE_S = 15
"""How long a prefill engine keeps blocks for a decode engine that does not come; 30 s is vLLM's own choice."""


def _connector(kind: str, role: str, **more: Any) -> tuple[str, str]:
    return "--kv-transfer-config", json.dumps({"kv_connector": kind, "kv_role": role, **more})


def _nixl(role: str, engine_id: str, **more: Any) -> tuple[str, str]:
    extra = {"kv_lease_duration": LEASE_S}
    return _connector(
        "NixlConnector",
        role,
        engine_id=engine_id,
        kv_buffer_device="cpu",
        kv_connector_extra_config=extra,
        **more,
    )


DISAGGREGATED = (
    Spec("prefill", (*TOOLS, *_nixl("kv_producer", "prefill-0"))),
    Spec("decode", (*TOOLS, *_nixl("kv_consumer", "decode-0", kv_load_failure_policy="recompute"))),
)
_FOLDER = _connector(
    "ExampleConnector", "kv_both", kv_connector_extra_config={"shared_storage_path": str(CACHE / "shared-storage")}
)
SHARED_STORAGE = (Spec("storage-prefill", _FOLDER), Spec("storage-decode", _FOLDER))
RANKS = (Spec("ranks", TOOLS, ranks=2),)

_ORDER = ("aggregated", "disaggregated", "shared_storage", "ranks")


class Fleet:
    """Starts a group when a test wants it, after the group before has ended: three servers are all two cores bear."""

    def __init__(self) -> None:
        self._specs: Sequence[Spec] = ()
        self._engines: list[Engine] = []

    def group(self, specs: Sequence[Spec]) -> list[Engine]:
        """All of them up, those included that an earlier test killed."""
        if specs != self._specs:
            self.stop()
            self._specs, self._engines = specs, [Engine(spec) for spec in specs]
        if not all(engine.running for engine in self._engines):
            start_all(self._engines)
        return self._engines

    def stop(self) -> None:
        for engine in self._engines:
            engine.stop()
        self._specs, self._engines = (), []


@pytest.fixture(scope="session")
def fleet() -> Iterator[Fleet]:
    fleet = Fleet()
    yield fleet
    fleet.stop()


@pytest.fixture
def aggregated(fleet: Fleet) -> list[Engine]:
    """Two engines that prefill and decode, with tools, two LoRA adapters and caches small enough to evict."""
    return fleet.group(AGGREGATED)


@pytest.fixture
def disaggregated(fleet: Fleet) -> list[Engine]:
    """A prefill and a decode engine that hand KV over by NIXL."""
    return fleet.group(DISAGGREGATED)


@pytest.fixture
def shared_storage(fleet: Fleet) -> list[Engine]:
    """A prefill and a decode engine that share a folder of KV blocks."""
    shutil.rmtree(CACHE / "shared-storage", ignore_errors=True)
    return fleet.group(SHARED_STORAGE)


@pytest.fixture
def ranks(fleet: Fleet) -> list[Engine]:
    """One server with two data-parallel ranks."""
    return fleet.group(RANKS)


_notes = pytest.StashKey[list[str]]()


@pytest.fixture
def note(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """A figure for the end of the run."""
    return request.config.stash[_notes].append


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for line in config.stash[_notes]:
        terminalreporter.write_line(line)


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_notes] = []
    config.addinivalue_line("markers", "full: only with FULL=1")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    why = unsupported()
    if why is None and not ENGINE_PYTHON.exists():
        raise pytest.UsageError(f"{CACHE} holds no vLLM: run `make test-vllm`, or python -m tests.real_vllm.build")
    for item in items:
        if why is not None:
            item.add_marker(pytest.mark.skip(reason=why))
        elif item.get_closest_marker("full") and not FULL:
            item.add_marker(pytest.mark.skip(reason="runs with FULL=1"))
        if item.get_closest_marker("timeout") is None:
            # The first test of a group pays for its start.
            item.add_marker(pytest.mark.timeout(1200))
    items.sort(key=_group)


def _group(item: pytest.Item) -> int:
    fixtures = getattr(item, "fixturenames", ())
    return next((place for place, name in enumerate(_ORDER, start=1) if name in fixtures), 0)

"""EngineConfig, Faults and the engine profiles: everything that a simulated engine is told from outside."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Literal

import msgspec
import yaml

from loadtest.simulator.timing import EngineProfile

PACKAGE = "loadtest.simulator"
TOKENIZER_PATH = Path(str(resources.files(PACKAGE) / "tokenizer"))
"""The folder with tokenizer.json and tokenizer_config.json of the default model."""

VERSION = "0.32.0"
"""The vLLM release whose surface is simulated."""

Role = Literal["prefill", "decode", "both"]


class SimulatorConfigError(ValueError):
    """A setting that no engine can run with; the message names it and the mend."""


class Faults(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Misbehaviour on demand, for the paths that begin with one of `paths`. Times in seconds of wall clock."""

    delay_head_s: float = 0.0
    """Wait before the response head."""
    delay_first_byte_s: float = 0.0
    """Wait between the head and the first body byte."""
    error_rate: float = 0.0
    """Share of requests (0..1) that are answered with `error_status`."""
    error_status: int = 500
    busy: bool = False
    """Answer 503 as an engine with a full queue does."""
    cut_after_chunks: int | None = None
    """Close the connection after that many body chunks; a body in one piece is cut in its middle."""
    cut_with: Literal["fin", "rst"] = "fin"
    hang: bool = False
    """Accept and never answer."""
    hang_after_chunks: int | None = None
    one_byte_chunks: bool = False
    slow_chunk_s: float = 0.0
    """Wait before each body chunk."""
    fail_paths: dict[str, int] = {}
    """Exact path -> status answered there, for example ``{"/health": 503}``."""
    paths: tuple[str, ...] = ("/v1/", "/pooling", "/classify", "/inference/", "/tokenize", "/detokenize")
    count: int | None = None
    """Only the next so many requests misbehave; None: all until the faults are changed."""
    die: bool = False
    """Stop listening and cut everything, at once."""


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One simulated engine."""

    host: str = "127.0.0.1"
    port: int = 0
    """0: any free port."""
    role: Role = "both"
    model: str = "sim-model"
    aliases: tuple[str, ...] = ()
    loras: tuple[str, ...] = ()
    max_loras: int = 4
    profile: str = "demo"
    """A name in profiles.yaml, or the path of a YAML file with one profile."""
    block_size: int = 16
    num_gpu_blocks: int | None = None
    """None: the profile's kv_tokens / block_size."""
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    max_model_len: int | None = None
    """None: what the block cache can hold, at most 131072."""
    max_num_queued_reqs: int | None = None
    """More requests in flight than this are answered 503."""
    scheduling_policy: Literal["fcfs", "priority"] = "fcfs"
    dp_size: int = 1
    kv_events: bool = True
    kv_events_port: int = 0
    """Rank r publishes on port + r and replays on port + 1000 + r; 0: any free ports."""
    event_form: Literal["map", "array"] = "map"
    event_hashes: Literal["int", "bytes"] = "int"
    buffer_steps: int = 10_000
    """Batches kept for replay."""
    api_key: str | None = None
    speed: float = 1.0
    """The engine's clock runs this many times faster than the wall clock."""
    seed: int = 0
    mean_output_tokens: int = 96
    """Length around which answers end by themselves (see `sampler`)."""
    engine_id: str | None = None
    """Name in hand-offs; None: made from role and port."""
    transfer_base_ms: float = 5.0
    transfer_ms_per_token: float = 0.005
    transfer_failure_s: float = 12.0
    """How long an engine tries to reach an unknown peer."""
    kv_load_failure_policy: Literal["recompute", "fail"] = "recompute"
    lease_s: float = 30.0
    """How long a finished prefill's blocks wait for their reader; the same time from the start of each."""
    fragile: bool = True
    """A lone ``do_remote_prefill`` kills the engine and incomplete hand-offs hang, as in vLLM."""
    shutdown_timeout_s: float = 0.0
    """0: a stopped engine ends running streams with finish_reason "abort"; else they may finish in this time."""
    tokenizer: str | None = None
    """Folder with tokenizer.json and tokenizer_config.json; None: the package's own."""
    faults: Faults = Faults()


def load_profiles(path: Path | None = None) -> dict[str, EngineProfile]:
    """The profiles of a YAML file (the package's by default) by name."""
    source = path or Path(str(resources.files(PACKAGE) / "profiles.yaml"))
    return msgspec.convert(yaml.safe_load(source.read_text(encoding="utf-8")), dict[str, EngineProfile])


def find_profile(name: str) -> EngineProfile:
    """The profile of that name, or the one in the YAML file of that path. Raises SimulatorConfigError."""
    if name.endswith((".yaml", ".yml")):
        found = list(load_profiles(Path(name)).values())
        if len(found) != 1:
            raise SimulatorConfigError(f"profile: {name} holds {len(found)} profiles; give a file with one")
        return found[0]
    profiles = load_profiles()
    if name not in profiles:
        raise SimulatorConfigError(f"profile: no profile {name!r}; use one of {', '.join(profiles)} or a .yaml file")
    return profiles[name]

"""EngineConfig, Faults and the engine profiles: everything that a simulated engine is told from outside."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any, Literal, NamedTuple

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


_EVER = float("inf")


class Bound(NamedTuple):
    """What a number may be, ends included; `above`: more than the least."""

    least: float
    most: float = _EVER
    above: bool = False

    def holds(self, value: float) -> bool:
        # A NaN is in no comparison, so it is refused too.
        low = self.least < value if self.above else self.least <= value
        return low and value <= self.most and value != _EVER

    def __str__(self) -> str:
        if self.most != _EVER:
            return f"{self.least:g} to {self.most:g}"
        return f"a number above {self.least:g}" if self.above else f"at least {self.least:g}"


_PORT, _COUNT, _TIME = Bound(0, 65535), Bound(1), Bound(0)


def refuse_senseless(settings: msgspec.Struct, bounds: dict[str, Bound], where: str = "") -> None:
    """Raises `SimulatorConfigError` for the first number that is out of its bounds; None is not looked at."""
    for name, bound in bounds.items():
        value = getattr(settings, name)
        if value is not None and not bound.holds(value):
            raise SimulatorConfigError(f"{where}{name}: {value:g} is no use; give {bound}")


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

    def __post_init__(self) -> None:
        """Raises `SimulatorConfigError`."""
        refuse_senseless(self, _FAULT_BOUNDS, "faults.")
        for path, status in self.fail_paths.items():
            if not 100 <= status <= 599:
                raise SimulatorConfigError(f"faults.fail_paths: {path} cannot be answered {status}; give 100 to 599")


_FAULT_BOUNDS = {
    "delay_head_s": _TIME,
    "delay_first_byte_s": _TIME,
    "slow_chunk_s": _TIME,
    "error_rate": Bound(0, 1),
    "error_status": Bound(200, 599),
    "cut_after_chunks": Bound(0),
    "hang_after_chunks": Bound(0),
    "count": Bound(0),
}


def in_url(host: str) -> str:
    """As it stands before the port of a URL: an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host else host


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One simulated engine."""

    host: str = "127.0.0.1"
    """An IPv6 address without brackets."""
    port: int = 0
    """0: any free port."""
    role: Role = "both"
    model: str = "sim-model"
    aliases: tuple[str, ...] = ()
    loras: tuple[str, ...] = ()
    max_loras: int = 4
    profile: str = "demo"
    """A name in profiles.yaml, the path of a YAML file with one profile, or FILE:NAME."""
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

    def __post_init__(self) -> None:
        """Raises `SimulatorConfigError`."""
        refuse_senseless(self, _ENGINE_BOUNDS)
        last = self.kv_events_port + 1000 + self.dp_size - 1
        if self.kv_events and self.kv_events_port and last > _PORT.most:
            raise SimulatorConfigError(
                f"kv_events_port: {self.kv_events_port} leaves no room for replay ports, 1000 above: give a lower one"
            )
        if not self.model or not all(self.aliases) or not all(self.loras):
            raise SimulatorConfigError("model: a served name is empty; give every model, alias and lora a name")


_ENGINE_BOUNDS = {
    "port": _PORT,
    "max_loras": _COUNT,
    "block_size": Bound(1, 1 << 20),
    "num_gpu_blocks": Bound(2, 1 << 24),
    "max_num_seqs": _COUNT,
    "max_num_batched_tokens": _COUNT,
    "max_model_len": _COUNT,
    "max_num_queued_reqs": _COUNT,
    "dp_size": Bound(1, 1024),
    "kv_events_port": _PORT,
    "buffer_steps": _COUNT,
    "speed": Bound(0, 1e6, above=True),
    "mean_output_tokens": _COUNT,
    "transfer_base_ms": _TIME,
    "transfer_ms_per_token": _TIME,
    "transfer_failure_s": _TIME,
    "lease_s": _TIME,
    "shutdown_timeout_s": _TIME,
}


_SHIPPED = Path(str(resources.files(PACKAGE) / "profiles.yaml"))


def load_profiles(path: Path | None = None) -> dict[str, EngineProfile]:
    """The profiles of a YAML file (the package's by default) by name. Raises `SimulatorConfigError`."""
    source = path or _SHIPPED
    try:
        read = yaml.safe_load(source.read_text(encoding="utf-8"))
    except OSError as error:
        raise SimulatorConfigError(f"profile: {source} cannot be read ({error.strerror}); name a YAML file") from None
    except (yaml.YAMLError, UnicodeDecodeError):
        raise SimulatorConfigError(f"profile: {source} is not YAML; give a file like {_SHIPPED}") from None
    if not isinstance(read, dict) or not read or not all(isinstance(each, dict) for each in read.values()):
        raise SimulatorConfigError(
            f"profile: {source} is not a mapping of a name to an engine's constants; see {_SHIPPED}"
        )
    return {str(name): _profile(f"{source}, {name}", constants) for name, constants in read.items()}


def _profile(where: str, constants: dict[str, Any]) -> EngineProfile:
    try:
        # Not strict: to YAML 1.1 a number like 1e-9 is text.
        profile = msgspec.convert(constants, EngineProfile, strict=False)
    except msgspec.ValidationError as error:
        raise SimulatorConfigError(f"profile: {where}: {error}; see {_SHIPPED}") from None
    refuse_senseless(profile, _PROFILE_BOUNDS, f"profile {where}: ")
    if profile.chunk <= profile.max_seqs:
        raise SimulatorConfigError(
            f"profile {where}: chunk ({profile.chunk}) leaves no token for prompts beside max_seqs "
            f"({profile.max_seqs}) answers; give a chunk above it"
        )
    return profile


_A_STEP, _MANY = Bound(0, 1e3), Bound(1, 1e9)

_PROFILE_BOUNDS = {
    "prefill_tokens_per_s": Bound(1e-3, 1e9),
    "attention_s": _A_STEP,
    "step_s": _A_STEP,
    "per_seq_s": _A_STEP,
    "per_kv_token_s": _A_STEP,
    "kv_tokens": _MANY,
    "chunk": _MANY,
    "max_seqs": _MANY,
}


def find_profile(name: str) -> EngineProfile:
    """The profile of that name, the one in the YAML file of that path, or one of several there as FILE:NAME.

    Raises `SimulatorConfigError`.
    """
    file, colon, wanted = name.rpartition(":")
    if not colon or not file.endswith(_YAML):
        file, wanted = name, ""
    if not file.endswith(_YAML):
        profiles = load_profiles()
        if name not in profiles:
            raise SimulatorConfigError(
                f"profile: no profile {name!r}; use one of {', '.join(profiles)}, or a .yaml file of your own"
            )
        return profiles[name]
    profiles = load_profiles(Path(file))
    if wanted or len(profiles) == 1:
        found = profiles.get(wanted) if wanted else next(iter(profiles.values()))
        if found is None:
            raise SimulatorConfigError(f"profile: {file} has no profile {wanted!r}; use one of {', '.join(profiles)}")
        return found
    raise SimulatorConfigError(
        f"profile: {file} holds {len(profiles)} profiles; say which, as {file}:NAME with one of {', '.join(profiles)}"
    )


_YAML = (".yaml", ".yml")

"""The product's own scheduling as contestants: the default, a configuration file, an llm-d EndpointPickerConfig.

Schedulers are built by `router.scheduling.build` from the settings that serve; nothing is decided here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from loadtest.replay.policies.base import Built, Contestant, World
from loadtest.simulator.timing import EngineProfile
from router import plain_yaml
from router.capacity.engine_model import EngineModels
from router.capacity.laws import Profile
from router.core import Candidate
from router.errors import ConfigError
from router.plugins.builtin import builtin_registry
from router.scheduling.build import build_scheduler
from router.scheduling.config import SchedulingSettings
from router.scheduling.epc import is_epc, load_epc
from router.settings import SchedulingTree
from router.settings.explain import sentence
from router.settings.sources import read_yaml


def contestant(
    name: str,
    settings: Callable[[World], SchedulingSettings] | SchedulingSettings,
    *,
    told: bool = False,
) -> Contestant:
    """`settings`, or what makes them of what an operator would know of the pool. `told`: engines are taken from the
    start for what they are (the first of them), and not for the prior as when it serves."""

    def build(world: World) -> Built:
        chosen = settings(world) if callable(settings) else settings
        models = EngineModels(world.clock, prior=_profile(world.profile) if told else None)
        return Built(
            policy=build_scheduler(chosen, builtin_registry()),
            observers=(models,),
            complete=lambda candidates: [
                Candidate(c.state, c.inflight, c.match, c.metrics_age, models.estimate(c.state.endpoint.id))
                for c in candidates
            ],
            forget=models.forget,
        )

    return Contestant(name=name, build=build, product=True)


def _profile(engine: EngineProfile) -> Profile:
    return Profile(
        overhead_s=0.0,
        token_s=1.0 / engine.prefill_tokens_per_s,
        pair_s=engine.attention_s,
        step_base_s=engine.step_s,
        step_seq_s=engine.per_seq_s,
        step_kv_s=engine.per_kv_token_s,
        chunk=engine.chunk,
    )


def one_profile(
    filters: tuple[str, ...] = (),
    scorers: Mapping[str, float] | None = None,
    picker: str = "max-score-picker",
    plugins: tuple[Mapping[str, Any], ...] = (),
) -> SchedulingSettings:
    """The same profile for both legs; prompts are prefilled elsewhere where there is somebody to do it."""
    weighted = [{"plugin": plugin, "weight": weight} for plugin, weight in (scorers or {}).items()]
    profile = {"filters": filters, "scorers": weighted, "picker": picker}
    return SchedulingSettings.model_validate(
        {
            "plugins": plugins,
            "profiles": {"decode": profile, "prefill": profile},
            "decider": "always-disagg-pd-decider",
        }
    )


class _File(BaseModel):
    scheduling: SchedulingTree


def from_file(path: Path) -> Contestant:
    """A kvrouter configuration, of which the `scheduling` section counts, or an EndpointPickerConfig.

    Raises `ConfigError`.
    """
    try:
        text = path.read_text(encoding="utf-8")
        document = plain_yaml.load(text)
    except OSError as error:
        raise ConfigError(f"--policy: {path} cannot be read ({error.strerror}): name a YAML file") from None
    except (UnicodeDecodeError, plain_yaml.NotYaml) as error:
        raise ConfigError(f"--policy: {path} is no YAML ({error}): mend the file") from None
    if is_epc(document):
        with _named(path):
            return contestant(path.stem, load_epc(text, builtin_registry()).settings)
    if not isinstance(document, Mapping) or "scheduling" not in document:
        raise ConfigError(
            f"--policy: {path} has no key scheduling and is no EndpointPickerConfig: name a file that is one of them"
        )
    source = read_yaml(path)
    try:
        settings = _File.model_validate({"scheduling": source.values.get("scheduling", {})}).scheduling
    except ValidationError as error:
        raise ConfigError(f"--policy: {sentence(error, source.values, [source])}") from None
    if settings.endpoint_picker_config is not None:
        return from_file(Path(settings.endpoint_picker_config))
    # Built once here, so that a wrong plugin is told before anything is replayed.
    with _named(path):
        build_scheduler(settings, builtin_registry())
    return contestant(path.stem, settings)


@contextlib.contextmanager
def _named(path: Path) -> Iterator[None]:
    """A mistake is told with the file that holds it."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"--policy: {path}: {error}") from None

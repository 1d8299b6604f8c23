import msgspec

from router.core import ModelCard
from router.plugins.scorers.lora_affinity import LoraAffinityScorer
from tests.support.scheduling import candidate, context, request


def test_running_then_room_then_waiting_then_nothing() -> None:
    candidates = [
        candidate(running_loras=["a"], max_loras=1),
        candidate(running_loras=["b"], max_loras=2),
        candidate(running_loras=["b"], waiting_loras=["a"], max_loras=1),
        candidate(running_loras=["b"], max_loras=1),
    ]
    assert LoraAffinityScorer().score(context(request_=request(model="a")), candidates) == [1.0, 0.8, 0.6, 0.0]


def test_unknown_adapters_are_neutral() -> None:
    candidates = [candidate(), candidate(running=1)]
    assert LoraAffinityScorer().score(context(request_=request(model="a")), candidates) == [0.5, 0.5]
    assert LoraAffinityScorer().score(context(request_=request(model=None)), candidates) == [0.5, 0.5]


def test_a_base_model_is_not_drawn_to_room_for_adapters() -> None:
    roomy = candidate(max_loras=4)
    base = msgspec.structs.replace(roomy.state, models={"m": ModelCard(id="m")})
    assert LoraAffinityScorer().score(context(), [msgspec.structs.replace(roomy, state=base)]) == [0.5]

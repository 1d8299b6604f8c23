"""A simulated vLLM engine: its HTTP surface, KV events, hand-offs and timing without a GPU.

It imports neither the router nor its index, so that it can serve as an independent reference for both.
"""

from loadtest.simulator.local import RunningEngine, start_engines
from loadtest.simulator.settings import TOKENIZER_PATH, EngineConfig, Faults, SimulatorConfigError

__all__ = ["TOKENIZER_PATH", "EngineConfig", "Faults", "RunningEngine", "SimulatorConfigError", "start_engines"]

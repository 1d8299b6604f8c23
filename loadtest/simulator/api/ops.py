"""Health, models, adapters, metrics, event sources and the switches of vLLM's development mode."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs

from loadtest.simulator.api.exchange import ApiError, Exchange
from loadtest.simulator.api.metrics import render_metrics
from loadtest.simulator.api.params import parse_json, require
from loadtest.simulator.node import SimEngine, fresh_id
from loadtest.simulator.publisher import HIGH_WATER_MARK
from loadtest.simulator.settings import VERSION

METRICS_TYPE = b"text/plain; version=1.0.0; charset=utf-8"


async def health(ex: Exchange) -> None:
    """200 while the engine core lives, paused or asleep or draining as it may be."""
    await ex.respond(503 if ex.engine.dead else 200, b"", content_type=b"")


async def version(ex: Exchange) -> None:
    await ex.json({"version": VERSION})


async def load(ex: Exchange) -> None:
    await ex.json({"server_load": ex.engine.in_flight})


async def metrics(ex: Exchange) -> None:
    await ex.respond(200, render_metrics(ex.engine), METRICS_TYPE)


def model_card(engine: SimEngine, name: str) -> dict[str, Any]:
    """One entry of the model list; an adapter has a parent and no length of its own."""
    adapter = name in engine.loras
    permission = {
        "id": f"modelperm-{fresh_id()}",
        "object": "model_permission",
        "created": int(engine.started_at),
        "allow_create_engine": False,
        "allow_sampling": True,
        "allow_logprobs": True,
        "allow_search_indices": False,
        "allow_view": True,
        "allow_fine_tuning": False,
        "organization": "*",
        "group": None,
        "is_blocking": False,
    }
    return {
        "id": name,
        "object": "model",
        "created": int(engine.started_at),
        "owned_by": "vllm",
        "root": name if adapter else engine.config.model,
        "parent": engine.config.model if adapter else None,
        "max_model_len": None if adapter else engine.max_model_len,
        "permission": [permission],
    }


async def models(ex: Exchange) -> None:
    engine = ex.engine
    names = [*engine.models(), *engine.loras]
    await ex.json({"object": "list", "data": [model_card(engine, name) for name in names]})


async def load_lora_adapter(ex: Exchange) -> None:
    body = parse_json(ex.raw)
    name, path = str(require(body, "lora_name")), str(require(body, "lora_path"))
    engine = ex.engine
    if name in engine.loras and not body.get("load_inplace"):
        text = (
            f"The lora adapter '{name}' has already been loaded. "
            "If you want to load the adapter in place, set 'load_inplace' to True."
        )
        raise ApiError(400, text, "InvalidUserInput")
    if not path:
        raise ApiError(404, f"Loading lora {name} failed: No adapter found for {path}", "NotFoundError")
    used = {number for number, _name in engine.loras.values()}
    engine.loras[name] = (next(i for i in range(1, len(used) + 2) if i not in used), name)
    await ex.respond(200, f"Success: LoRA adapter '{name}' added successfully.".encode(), b"text/plain; charset=utf-8")


async def unload_lora_adapter(ex: Exchange) -> None:
    name = str(require(parse_json(ex.raw), "lora_name"))
    if ex.engine.loras.pop(name, None) is None:
        raise ApiError(404, f"The lora adapter '{name}' cannot be found.", "NotFoundError")
    await ex.respond(
        200, f"Success: LoRA adapter '{name}' removed successfully.".encode(), b"text/plain; charset=utf-8"
    )


async def kv_event_sources(ex: Exchange) -> None:
    sources = {
        str(p.rank): {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": f"tcp://*:{p.port}",
            "replay_endpoint": f"tcp://*:{p.replay_port}",
            "buffer_steps": p.buffer_steps,
            "hwm": HIGH_WATER_MARK,
            "max_queue_size": HIGH_WATER_MARK,
            "topic": p.topic,
        }
        for p in ex.engine.publishers
    }
    await ex.json(sources)


def _query(ex: Exchange, name: str, default: str) -> str:
    return parse_qs(ex.query.decode("latin-1")).get(name, [default])[0]


async def reset_prefix_cache(ex: Exchange) -> None:
    await ex.json({"success": ex.engine.reset_prefix_cache()})


async def pause(ex: Exchange) -> None:
    mode = _query(ex, "mode", "abort")
    if mode not in ("abort", "wait", "keep"):
        raise ApiError(400, f"Invalid mode '{mode}'. Must be one of 'abort', 'wait' or 'keep'.")
    ex.engine.pause(mode)
    await ex.json({"status": "paused"})


async def resume(ex: Exchange) -> None:
    ex.engine.resume()
    await ex.json({"status": "resumed"})


async def is_paused(ex: Exchange) -> None:
    await ex.json({"is_paused": ex.engine.paused})


async def sleep(ex: Exchange) -> None:
    level = _query(ex, "level", "1")
    if level not in ("1", "2"):
        raise ApiError(400, f"Invalid sleep level {level}. Must be 1 or 2.")
    ex.engine.sleep(int(level))
    await ex.json({"status": "sleeping", "level": int(level)})


async def wake_up(ex: Exchange) -> None:
    ex.engine.wake_up()
    await ex.json({"status": "awake"})


async def is_sleeping(ex: Exchange) -> None:
    await ex.json({"is_sleeping": ex.engine.sleep_level > 0})

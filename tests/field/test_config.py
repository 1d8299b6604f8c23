"""Configuration: by whatever way it comes, and while the router runs."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from router.app import App
from router.errors import ConfigError
from router.reload import ConfigWatcher, SettingsLoader
from router.settings import Settings, load
from tests.support.field import CHAT, chat
from tests.support.router import client_of, running_app
from tests.support.stub_engine import HAND_OFF, serve, stubs

LONG = "a long prompt " * 60


@pytest.mark.parametrize("launcher", ["flags", "environment", "file"])
async def test_cfg_04_roles_mean_the_same_whoever_sets_them(launcher: str, tmp_path: Path) -> None:
    async with stubs(serve, serve) as (prefill, decode):
        specs = [{"url": prefill.url, "role": "prefill"}, {"url": decode.url, "role": "decode"}]
        always = {"plugins": [{"type": "always-disagg-pd-decider"}], "decider": "always-disagg-pd-decider"}
        tokens = {"default": None, "remote": False}
        if launcher == "flags":
            flags = {
                "endpoints": specs,
                "scheduling.plugins": always["plugins"],
                "scheduling.decider": always["decider"],
            }
            settings = load(None, environ={}, flags={**flags, "tokenization.remote": False})
        elif launcher == "environment":
            environ = {
                "KVROUTER_ENDPOINTS": json.dumps(specs),
                "KVROUTER_SCHEDULING__PLUGINS": json.dumps(always["plugins"]),
                "KVROUTER_SCHEDULING__DECIDER": "always-disagg-pd-decider",
                "KVROUTER_TOKENIZATION__REMOTE": "false",
            }
            settings = load(None, environ=environ, flags={})
        else:
            file = tmp_path / "kv.yaml"
            file.write_text(
                json.dumps({"endpoints": specs, "scheduling": always, "tokenization": tokens}), encoding="utf-8"
            )
            settings = load(file, environ={}, flags={})
        async with running_app(settings) as router, client_of(router) as client:
            answer = await client.post(CHAT, json={"model": "stub", "messages": chat(LONG)["messages"]})
            assert answer.status_code == 200
            assert len(prefill.calls) == len(decode.calls) == 1
            assert decode.calls[0].json["kv_transfer_params"] == HAND_OFF


async def test_cfg_01_a_change_is_taken_whole_or_not_at_all_and_traffic_follows() -> None:
    async with stubs(serve, serve) as (one, two):

        def settings(*urls: str, **scheduling: object) -> Settings:
            flags = {"endpoints": list(urls), "tokenization.remote": False, "server.access_log": False}
            return load(None, environ={}, flags={**flags, **{f"scheduling.{k}": v for k, v in scheduling.items()}})

        wanted = [settings(one.url)]

        class Loader(SettingsLoader):
            def __call__(self) -> Settings:
                return wanted[-1]

            def paths(self, settings: Settings) -> tuple[Path, ...]:
                return ()

        async with running_app(wanted[0]) as router, client_of(router) as client:
            app: App = router.app
            watcher = ConfigWatcher(wanted[0], Loader(), app.apply)

            async def served_by() -> str:
                answer = await client.post(CHAT, json=chat())
                assert answer.status_code == 200
                return answer.headers["x-kvrouter-endpoint"]

            assert await served_by() == one.id
            # Valid as a tree, refused where the scheduler is built: the endpoints beside it must not change either.
            wanted.append(settings(two.url, plugins=[{"type": "no-such-plugin"}]))
            assert not await watcher.reload()
            assert await served_by() == one.id
            wanted.append(settings(two.url))
            assert await watcher.reload()
            async with asyncio.timeout(10):
                while await served_by() != two.id:
                    await asyncio.sleep(0.01)


def test_cfg_01_a_wrong_configuration_is_one_sentence() -> None:
    with pytest.raises(ConfigError, match="endpoints"):
        load(None, environ={}, flags={"endpoints": ["not an address"]})

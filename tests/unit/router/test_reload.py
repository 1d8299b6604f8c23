"""Reload: what may change live, and that a bad configuration changes nothing."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from router.errors import ConfigError
from router.reload import ConfigWatcher, SettingsLoader, compare
from router.settings import Settings
from router.settings.keys import digest

SECONDS = 20.0
"""Far more than a reload takes; a test that reaches it fails."""


def settings(**given: Any) -> Settings:
    return Settings.model_validate({"endpoints": ["http://a:1"], **given})


@pytest.fixture(autouse=True)
def no_settings_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("KVROUTER_")]:
        monkeypatch.delenv(name)


class TestCompare:
    def test_nothing(self) -> None:
        change = compare(settings(), settings())
        assert (change.live, change.restart) == ((), ())

    @pytest.mark.parametrize(
        ("given", "name"),
        [
            ({"endpoints": ["http://b:1"]}, "endpoints"),
            ({"discovery": {"dns": [{"name": "n", "port": 1}]}}, "discovery"),
            ({"server": {"api_keys": ["k"]}}, "server.api_keys"),
            ({"scheduling": {"decider": "x"}}, "scheduling"),
            ({"flow_control": {"tenant_weights": {"a": 2.0}}}, "flow_control"),
            ({"pool": {"probe_interval_s": 5.0}}, "pool"),
            ({"pd": {"enabled": False}}, "pd.enabled"),
            ({"log": {"level": "debug"}}, "log.level"),
            ({"server": {"max_concurrent_requests": 5}}, "server.max_concurrent_requests"),
        ],
    )
    def test_what_may_change_live_does(self, given: dict[str, Any], name: str) -> None:
        new = settings(**given)
        change = compare(settings(), new)
        assert (change.live, change.restart) == ((name,), ())
        assert change.settings == new

    def test_the_rest_is_named_and_stays_as_it_was(self) -> None:
        old = settings()
        new = settings(endpoints=["http://b:1"], server={"port": 9, "api_keys": ["k"]}, log={"requests": "/x"})
        change = compare(old, new)
        assert change.live == ("server.api_keys", "endpoints")
        assert change.restart == ("server.port", "log.requests")
        assert (change.settings.server.port, change.settings.log.requests) == (8000, None)
        assert change.settings.endpoints == new.endpoints
        assert change.settings.server.api_keys == new.server.api_keys


class Applied:
    """Records what was applied, and refuses what it is told to refuse."""

    def __init__(self) -> None:
        self.seen: asyncio.Queue[Settings] = asyncio.Queue()
        self.refuse: str | None = None

    async def __call__(self, new: Settings) -> None:
        if self.refuse is not None:
            raise ConfigError(self.refuse)
        self.seen.put_nowait(new)

    async def next_urls(self) -> list[str]:
        async with asyncio.timeout(SECONDS):
            return [endpoint.url for endpoint in (await self.seen.get()).endpoints]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "kv.yaml"
    path.write_text("endpoints: ['http://a:1']\n", encoding="utf-8")
    return path


def watcher(config: Path, applied: Applied) -> ConfigWatcher:
    loader = SettingsLoader(config)
    return ConfigWatcher(loader(), loader, applied)


@asynccontextmanager
async def running(watching: ConfigWatcher) -> AsyncIterator[None]:
    task = asyncio.create_task(watching.run())
    await asyncio.sleep(0.2)  # The operating system's watch must stand before the file changes.
    try:
        yield
    finally:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_a_request_loads_and_applies(config: Path) -> None:
    applied = Applied()
    watching = watcher(config, applied)
    config.write_text("endpoints: ['http://b:1']\n", encoding="utf-8")
    assert await watching.reload()
    assert await applied.next_urls() == ["http://b:1"]
    assert watching.current.endpoints[0].url == "http://b:1"


async def test_the_flags_of_the_start_stay_in_force(config: Path) -> None:
    loader = SettingsLoader(config, {"server.port": 9000})
    applied = Applied()
    watching = ConfigWatcher(loader(), loader, applied)
    config.write_text("endpoints: ['http://b:1']\nserver: {port: 7000}\n", encoding="utf-8")
    assert await watching.reload()
    assert watching.current.server.port == 9000


@pytest.mark.parametrize("content", ["endpoints: [", "endpoints: []", "wibble: 1", "endpoints: ['http://b:1']\nx: 1"])
async def test_a_bad_file_leaves_the_old_configuration_in_force(
    config: Path, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    applied = Applied()
    watching = watcher(config, applied)
    before = watching.current
    config.write_text(content, encoding="utf-8")
    assert not await watching.reload()
    assert watching.current is before
    assert applied.seen.empty()
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert record.getMessage().startswith("configuration not reloaded, the old one stays in force: ")
    assert "\n" not in record.getMessage()


async def test_what_cannot_be_applied_leaves_the_old_configuration_in_force(config: Path) -> None:
    applied = Applied()
    applied.refuse = "scheduling.decider: there is no such plugin"
    watching = watcher(config, applied)
    before = watching.current
    config.write_text("endpoints: ['http://b:1']\n", encoding="utf-8")
    assert not await watching.reload()
    assert watching.current is before


async def test_what_needs_a_restart_is_named_and_not_applied(config: Path, caplog: pytest.LogCaptureFixture) -> None:
    applied = Applied()
    watching = watcher(config, applied)
    config.write_text("endpoints: ['http://a:1']\nindex: {max_blocks: 5}\n", encoding="utf-8")
    assert await watching.reload()
    assert applied.seen.empty()
    assert "needs a restart to take effect: index.max_blocks" in caplog.text


async def test_a_changed_file_is_noticed_even_when_it_is_replaced(config: Path) -> None:
    applied = Applied()
    async with running(watcher(config, applied)):
        config.write_text("endpoints: ['http://b:1']\n", encoding="utf-8")
        assert await applied.next_urls() == ["http://b:1"]
        fresh = config.with_name("fresh")
        fresh.write_text("endpoints: ['http://c:1']\n", encoding="utf-8")
        fresh.rename(config)
        assert await applied.next_urls() == ["http://c:1"]


async def test_a_configmaps_swapped_symlink_is_noticed(tmp_path: Path) -> None:
    for name, host in (("old", "a"), ("new", "b")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "kv.yaml").write_text(f"endpoints: ['http://{host}:1']\n", encoding="utf-8")
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    (mounted / "..data").symlink_to(tmp_path / "old")
    (mounted / "kv.yaml").symlink_to("..data/kv.yaml")
    applied = Applied()
    async with running(watcher(mounted / "kv.yaml", applied)):
        (mounted / "..tmp").symlink_to(tmp_path / "new")
        (mounted / "..tmp").rename(mounted / "..data")
        assert await applied.next_urls() == ["http://b:1"]


async def test_the_key_file_is_watched_too(config: Path) -> None:
    keys = config.with_name("keys")
    keys.write_text("one\n", encoding="utf-8")
    config.write_text("endpoints: ['http://a:1']\nserver: {api_keys_file: keys}\n", encoding="utf-8")
    applied = Applied()
    async with running(watcher(config, applied)):
        keys.write_text("two\n", encoding="utf-8")
        async with asyncio.timeout(SECONDS):
            new = await applied.seen.get()
    assert [key.digest for key in new.server.api_keys] == [digest("two")]


async def test_a_key_file_that_names_an_unknown_objective_is_not_taken(
    config: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keys = config.with_name("keys")
    keys.write_text("one name=web objectives=chat\n", encoding="utf-8")
    config.write_text(
        "endpoints: ['http://a:1']\nserver: {api_keys_file: keys}\nflow_control: {objectives: [{name: chat}]}\n",
        encoding="utf-8",
    )
    applied = Applied()
    watching = watcher(config, applied)
    assert await watching.reload()
    in_force = watching.current
    keys.write_text("one name=web objectives=chat\ntwo name=app objectives=chta\n", encoding="utf-8")
    assert not await watching.reload()
    assert watching.current == in_force
    assert "whose line 2 gives the key app an objective that flow_control.objectives does not list" in caplog.text


async def test_a_rewritten_picker_configuration_is_applied_though_its_path_stays(config: Path) -> None:
    picker = config.with_name("epc.yaml")
    picker.write_text("one", encoding="utf-8")
    config.write_text("endpoints: ['http://a:1']\nscheduling: {endpoint_picker_config: epc.yaml}\n", encoding="utf-8")
    applied = Applied()
    watching = watcher(config, applied)
    assert await watching.reload()
    assert applied.seen.empty()
    picker.write_text("two", encoding="utf-8")
    assert await watching.reload()
    assert await applied.next_urls() == ["http://a:1"]
    assert await watching.reload()
    assert applied.seen.empty()


async def test_a_signal_reloads_where_nothing_is_watched() -> None:
    loaded = iter([settings(), settings(), settings(endpoints=["http://b:1"])])

    class Scripted(SettingsLoader):
        def __call__(self) -> Settings:
            return next(loaded)

    loader = Scripted()
    applied = Applied()
    watching = ConfigWatcher(loader(), loader, applied)
    async with running(watching):
        watching.request()
        assert await applied.next_urls() == ["http://b:1"]


async def test_a_change_between_the_load_and_the_watch_is_not_lost(config: Path) -> None:
    applied = Applied()
    watching = watcher(config, applied)
    config.write_text("endpoints: ['http://b:1']\n", encoding="utf-8")
    async with running(watching):
        assert await applied.next_urls() == ["http://b:1"]


async def test_nor_one_of_a_picker_configuration(config: Path) -> None:
    picker = config.with_name("epc.yaml")
    picker.write_text("one", encoding="utf-8")
    config.write_text("endpoints: ['http://a:1']\nscheduling: {endpoint_picker_config: epc.yaml}\n", encoding="utf-8")
    applied = Applied()
    watching = watcher(config, applied)
    picker.write_text("two", encoding="utf-8")
    async with running(watching):
        assert await applied.next_urls() == ["http://a:1"]


async def test_nor_one_that_the_operating_system_does_not_tell_of(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change after the catching up and before the watch stands is no event: contents are compared now and then."""

    async def no_events(*_: Any, yield_on_timeout: bool, **__: Any) -> AsyncIterator[set[Any]]:
        assert yield_on_timeout
        config.write_text("endpoints: ['http://b:1']\n", encoding="utf-8")
        yield set()
        await asyncio.Event().wait()

    monkeypatch.setattr("router.reload.awatch", no_events)
    applied = Applied()
    async with running(watcher(config, applied)):
        assert await applied.next_urls() == ["http://b:1"]


async def test_a_start_without_a_change_says_nothing(config: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    applied = Applied()
    async with running(watcher(config, applied)):
        pass
    assert applied.seen.empty()
    assert "reloaded" not in caplog.text


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the log says came of loads."""
    return [message for message in caplog.messages if "reloaded" in message]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("endpoints: ['http://b:1']", "configuration reloaded: endpoints"),
        ("endpoints: [", "configuration not reloaded, the old one stays in force: "),
    ],
)
async def test_a_change_that_a_signal_comes_with_is_told_of_once(
    content: str, said: str, config: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr("router.reload._SAME_S", SECONDS)
    watching = watcher(config, Applied())
    async with running(watching):
        config.write_text(content, encoding="utf-8")
        watching.request()
        async with asyncio.timeout(SECONDS):
            while not told(caplog):
                await asyncio.sleep(0.01)
        # Behind the load: a signal and the watch may still come.
        watching.request()
        await asyncio.sleep(0.6)
    (line,) = told(caplog)
    assert line.startswith(said)


async def test_a_signal_that_comes_later_is_answered_again(
    config: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr("router.reload._SAME_S", 0.0)
    watching = watcher(config, Applied())
    async with running(watching):
        for count in (1, 2):
            watching.request()
            async with asyncio.timeout(SECONDS):
                while len(told(caplog)) < count:
                    await asyncio.sleep(0.01)


async def test_what_a_change_names_for_the_first_time_is_read_with_it(
    config: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    config.with_name("keys").write_text("one\n", encoding="utf-8")
    applied = Applied()
    watching = watcher(config, applied)
    async with running(watching):
        config.write_text("endpoints: ['http://a:1']\nserver: {api_keys_file: keys}\n", encoding="utf-8")
        async with asyncio.timeout(SECONDS):
            new = await applied.seen.get()
        assert [key.digest for key in new.server.api_keys] == [digest("one")]
        # Its content is what was loaded: it is no further change.
        config.with_name("other").write_text("", encoding="utf-8")
        await asyncio.sleep(0.6)
        assert len(told(caplog)) == 1
        config.with_name("keys").write_text("two\n", encoding="utf-8")
        async with asyncio.timeout(SECONDS):
            new = await applied.seen.get()
        assert [key.digest for key in new.server.api_keys] == [digest("two")]

"""Settings: where a value comes from, and what each mistake says."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from router.core import Role
from router.errors import ConfigError
from router.settings import RateSettings, Settings, dump, load
from router.settings.doc import render
from router.settings.environment import environment_names
from router.settings.keys import digest

ONE = {"endpoints": ["http://127.0.0.1:8001"]}
FILE: dict[str, Any] = ONE | {"server": {"api_keys_file": "keys"}}
DOC = Path(__file__).parents[3] / "docs" / "configuration.md"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def from_text(
    folder: Path, text: str, environ: Mapping[str, str] | None = None, flags: Mapping[str, Any] | None = None
) -> Settings:
    path = folder / "kv.yaml"
    path.write_text(text, encoding="utf-8")
    return load(path, environ=environ or {}, flags=flags)


def objectives(*names: str) -> dict[str, Any]:
    return {"flow_control": {"objectives": [{"name": name} for name in names]}}


def complaint(folder: Path, text: str, environ: Mapping[str, str] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        from_text(folder, text, environ)
    return str(caught.value).replace(f"{folder}/", "")


class TestPrecedence:
    @given(st.sets(st.sampled_from(["yaml", "env", "flag"])))
    def test_the_highest_source_that_speaks_wins(
        self, tmp_path_factory: pytest.TempPathFactory, speaking: set[str]
    ) -> None:
        ports = {"default": 8000, "yaml": 1111, "env": 2222, "flag": 3333}
        text = yaml.safe_dump(ONE | ({"server": {"port": ports["yaml"]}} if "yaml" in speaking else {}))
        environ = {"KVROUTER_SERVER__PORT": str(ports["env"])} if "env" in speaking else {}
        flags = {"server.port": ports["flag"]} if "flag" in speaking else {}
        settings = from_text(tmp_path_factory.mktemp("settings"), text, environ, flags)
        winner = max({"default"} | speaking, key=list(ports).index)
        assert settings.server.port == ports[winner]

    def test_mappings_merge_key_by_key(self, folder: Path) -> None:
        settings = from_text(
            folder,
            yaml.safe_dump(
                ONE | {"server": {"host": "10.1.1.1", "settle_s": 3}, "tokenization": {"models": {"a": "A"}}}
            ),
            {"KVROUTER_SERVER__PORT": "9000", "KVROUTER_TOKENIZATION__MODELS": '{"b": "B"}'},
        )
        assert (settings.server.host, settings.server.port, settings.server.settle_s) == ("10.1.1.1", 9000, 3.0)
        assert settings.tokenization.models == {"a": "A", "b": "B"}

    def test_a_list_replaces_the_list_below_it(self, folder: Path) -> None:
        settings = from_text(
            folder, yaml.safe_dump(ONE), flags={"endpoints": [{"url": "http://h:1", "role": "decode"}]}
        )
        assert [(endpoint.url, endpoint.role) for endpoint in settings.endpoints] == [("http://h:1", Role.DECODE)]

    def test_settings_made_by_hand_read_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("KVROUTER_SERVER__PORT", "9000")
        assert Settings().server.port == 8000

    def test_the_tree_is_frozen(self) -> None:
        with pytest.raises(ValidationError):
            Settings().server.port = 1


class TestEnvironment:
    def test_its_text_is_read_as_the_key_asks(self) -> None:
        settings = load(
            environ={
                "KVROUTER_ENDPOINTS": "http://a:1",
                "KVROUTER_SERVER__PORT": "9000",
                "KVROUTER_SERVER__ACCESS_LOG": "no",
                "KVROUTER_SERVER__API_KEYS": "12,34",
                "KVROUTER_POOL__PROBE_INTERVAL_S": "2",
                "KVROUTER_PD__ENABLED": "false",
                "KVROUTER_INDEX__BLOCK_SIZE": "32",
                "KVROUTER_RETRIES__ON_STATUS": "502,503",
            }
        )
        assert (settings.server.port, settings.server.access_log) == (9000, False)
        assert [key.digest for key in settings.server.api_keys] == [digest("12"), digest("34")]
        assert (settings.pool.probe_interval_s, settings.pd.enabled, settings.index.block_size) == (2.0, False, 32)
        assert settings.retries.on_status == (502, 503)

    @pytest.mark.parametrize("value", ["http://a:1,http://b:2", '["http://a:1", {"url": "http://b:2"}]'])
    def test_a_list_is_json_or_has_commas(self, value: str) -> None:
        settings = load(environ={"KVROUTER_ENDPOINTS": value})
        assert [endpoint.url for endpoint in settings.endpoints] == ["http://a:1", "http://b:2"]

    @pytest.mark.parametrize(
        ("backend", "url", "shares"),
        [("", "", False), ("", "redis://h", True), ("memory", "redis://h", False), ("redis", "redis://h", True)],
    )
    def test_a_redis_that_is_named_is_shared_through_unless_it_is_said_not_to_be(
        self, backend: str, url: str, shares: bool
    ) -> None:
        environ = {"KVROUTER_ENDPOINTS": "http://a:1", "KVROUTER_REDIS__URL": url, "KVROUTER_INDEX__BACKEND": backend}
        assert load(environ=environ).shares is shares

    def test_an_empty_variable_is_not_set_and_null_is_null(self, folder: Path) -> None:
        text = yaml.safe_dump(ONE | {"server": {"port": 1234}, "redis": {"url": "redis://h"}})
        settings = from_text(folder, text, {"KVROUTER_SERVER__PORT": "", "KVROUTER_REDIS__URL": "null"})
        assert settings.server.port == 1234
        assert settings.redis.url is None

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("KVROUTER_SERVICE_HOST", "10.0.0.1"),
            ("KVROUTER_SERVICE_PORT_HTTP", "8000"),
            ("KVROUTER_PORT", "tcp://10.0.0.1:8000"),
            ("KVROUTER_PORT_8000_TCP_ADDR", "10.0.0.1"),
            ("KVROUTER_REDIS_PORT_6379_TCP", "tcp://10.0.0.1:6379"),
            ("KVROUTER_CONFIG", "elsewhere.yaml"),
        ],
    )
    def test_what_kubernetes_puts_there_for_a_service_of_our_name_is_no_setting(self, name: str, value: str) -> None:
        assert load(environ={name: value, "KVROUTER_ENDPOINTS": "http://a:1"}) == load(
            environ={"KVROUTER_ENDPOINTS": "http://a:1"}
        )

    @pytest.mark.parametrize(
        ("name", "mend"),
        [
            ("KVROUTER_SERVER_PORT", "did you mean KVROUTER_SERVER__PORT?"),
            ("KVROUTER_PORT", ""),
            ("KVROUTER_QQQQQQQQ", "unset it"),
        ],
    )
    def test_an_unknown_name_stops_the_start(self, folder: Path, name: str, mend: str) -> None:
        said = complaint(folder, yaml.safe_dump(ONE), {name: "9000"})
        assert said.startswith(f"{name} (environment) is not a setting: ")
        assert mend in said

    @given(st.sampled_from(environment_names()), st.sampled_from("ABCXYZ"))
    def test_no_name_beside_the_tree_is_taken(self, name: str, letter: str) -> None:
        with pytest.raises(ConfigError, match="is not a setting"):
            load(environ={f"{name}{letter}{letter}Q": "1", "KVROUTER_ENDPOINTS": "http://a:1"})

    @pytest.mark.parametrize("value", ["[s3cret", "{s3cret"])
    def test_broken_json_names_the_variable_and_not_its_value(self, value: str) -> None:
        with pytest.raises(ConfigError) as caught:
            load(environ={"KVROUTER_SERVER__API_KEYS": value})
        assert "KVROUTER_SERVER__API_KEYS (environment) is not valid JSON" in str(caught.value)
        assert "s3cret" not in str(caught.value)


MISTAKES = [
    ("server: {prot: 1}", "server.prot (kv.yaml line 2) is not a setting: did you mean server.port?"),
    ("port: 1", "port (kv.yaml line 2) is not a setting: did you mean server.port?"),
    ("server:\n  port: abc", "server.port (kv.yaml line 3) must be a whole number, not 'abc'"),
    ('"a\\nb": 1', "a\\nb (kv.yaml line 2) is not a setting: take it out"),
    ("server: {port: true}", "server.port (kv.yaml line 2) must be a whole number, not True"),
    ("server: {port: '9000'}", "server.port (kv.yaml line 2) must be a whole number, not '9000'"),
    ("server: {port: 9000.0}", "server.port (kv.yaml line 2) must be a whole number, not 9000.0"),
    ("server: {access_log: 'yes'}", "server.access_log (kv.yaml line 2) must be true or false, not 'yes'"),
    ("server: {access_log: 1}", "server.access_log (kv.yaml line 2) must be true or false, not 1"),
    ("pool: {probe_interval_s: '2'}", "pool.probe_interval_s (kv.yaml line 2) must be a number, not '2'"),
    ("pool: {probe_interval_s: true}", "pool.probe_interval_s (kv.yaml line 2) must be a number, not True"),
    ("retries: {on_status: ['502']}", "retries.on_status[0] (kv.yaml line 2) must be a whole number, not '502'"),
    ("index: {block_size: true}", "index.block_size (kv.yaml line 2) must be 'auto' or a whole number, not True"),
    ("tokenization: {models: {m: 1}}", "tokenization.models.m (kv.yaml line 2) must be text (put it in quotes)"),
    (
        "scheduling: {profiles: {decode: {scorers: [{plugin: queue-scorer, weight: true}]}}}",
        "scheduling.profiles.decode.scorers[0].weight (kv.yaml line 2) must be a number, not True",
    ),
    ("server: {port: 99999}", "server.port (kv.yaml line 2) must be at most 65535, not 99999"),
    ("server: {port: 1, port: 2}", "kv.yaml line 2 is not valid YAML: port stands twice"),
    ("server: 5", "server (kv.yaml line 2) must be a mapping of keys to values, not 5"),
    ("index: {block_size: x}", "index.block_size (kv.yaml line 2) must be 'auto' or a whole number, not 'x'"),
    ("pd: {enabled: maybe}", "pd.enabled (kv.yaml line 2) must be true or false or 'auto', not 'maybe'"),
    ("log: {level: loud}", "log.level (kv.yaml line 2) must be 'debug', 'info', 'warning' or 'error', not 'loud'"),
    ("pool: {probe_interval_s: .inf}", "pool.probe_interval_s (kv.yaml line 2) must be a finite number, not inf"),
    ("pool: {probe_interval_s: 0}", "pool.probe_interval_s (kv.yaml line 2) must be at least 0.001, not 0"),
    ("pool: {probe_interval_s: 1e12}", "pool.probe_interval_s (kv.yaml line 2) must be at most 31536000, not 1"),
    ("pool: {probe_interval_s: 1:30}", "pool.probe_interval_s (kv.yaml line 2) must be a number, not '1:30'"),
    ("pool: {probe_interval_s: 30s}", "pool.probe_interval_s (kv.yaml line 2) must be a number, not '30s'"),
    ("server: {port: 22:22}", "server.port (kv.yaml line 2) must be a whole number, not '22:22'"),
    ("server: {port: 0123}", "server.port (kv.yaml line 2) must be a whole number, not '0123'"),
    ("server: {host: ''}", "server.host (kv.yaml line 2) is empty: give the address to listen on, like 127.0.0.1, or"),
    ("server: {host: 'http://a'}", "server.host (kv.yaml line 2) must be one address or host name without a port"),
    ("server: {trusted_headers: ['a b']}", "server.trusted_headers (kv.yaml line 2) holds 'a b', which is no header's"),
    ("server: {tenant_salt_secret: abc}", "server.tenant_salt_secret (kv.yaml line 2) must be at least 16 characters"),
    ("server: {1: 2}", "kv.yaml line 2 is not valid YAML: the key 1 is no text (put it in quotes)"),
    ("server: {on: 2}", "kv.yaml line 2 is not valid YAML: the key on is no text (put it in quotes)"),
    ("? [a]\n: 1", "kv.yaml line 2 is not valid YAML: a key is no plain text"),
    ("Server: {port: 1}", "Server (kv.yaml line 2) is not a setting: did you mean server?"),
    ("server.port: 1", "server.port (kv.yaml line 2) is not a setting: write port below server, as a mapping"),
    ("discovery: {dns: [{nmae: x, port: 1}]}", "discovery.dns[0].nmae (kv.yaml line 2) is not a setting: did you mean"),
    (
        "flow_control: {objectives: [{name: a}, {name: a}]}",
        "flow_control.objectives (kv.yaml line 2) holds name a tw",
    ),
    (
        "flow_control: {classes: [{priority: 1}, {priority: 1}]}",
        "flow_control.classes (kv.yaml line 2) holds priority",
    ),
    ("discovery: {dns: [{name: x}]}", "discovery.dns[0] (kv.yaml line 2) has no port: "),
    ("discovery: {dns: [{kind: srv}]}", "discovery.dns[0].name (kv.yaml line 2) is missing: name to resolve"),
    (
        "scheduling: {deciderr: x}",
        "scheduling.deciderr (kv.yaml line 2) is not a setting: did you mean scheduling.decider?",
    ),
    ("index: {backend: redis}", "index.backend is redis, but redis.url is not set: give one like redis://"),
    ("redis: {client_key_file: k.pem}", "redis.client_key_file is set and redis.client_cert_file is not: name the"),
    ("pd: [", "kv.yaml line 3 is not valid YAML"),
    ("x: !!python/object:os.system {}", "kv.yaml line 2 is not valid YAML"),
]

ENDPOINT_MISTAKES = [
    ("a:1", "endpoints[0] (kv.yaml line 1) must be an http:// or https:// address"),
    ("http://a:1/v1", "endpoints[0] (kv.yaml line 1) must be the engine's root: leave the /v1 off"),
    ("'http://a:1?x=1'", "endpoints[0] (kv.yaml line 1) must not hold a query or fragment"),
    ("http://a:99999", "endpoints[0] (kv.yaml line 1) is not an address"),
    ("{role: decode}", "endpoints[0].url (kv.yaml line 1) is missing: address"),
    ("{url: http://a, role: decoder}", "endpoints[0].role (kv.yaml line 1) must be 'prefill', 'decode' or 'both'"),
    ("{url: http://a, kv_events: {endpoint: x}}", "endpoints[0].kv_events.endpoint (kv.yaml line 1) must be a ZMQ"),
    ("{url: http://a, kv_events: 0}", "endpoints[0].kv_events (kv.yaml line 1) must be a mapping of keys to values or"),
    ("{url: http://a, kv_events: true}", "endpoints[0].kv_events (kv.yaml line 1) must be a mapping"),
    ("{url: http://a, role: prefill}", "endpoints has only role prefill, and nobody would decode: add one"),
]


class TestMistakes:
    @pytest.mark.parametrize(("text", "sentence"), MISTAKES)
    def test_one_sentence_names_key_place_and_mend(self, folder: Path, text: str, sentence: str) -> None:
        said = complaint(folder, f"endpoints: [http://127.0.0.1:8001]\n{text}\n")
        assert said.startswith(sentence)
        assert "\n" not in said

    @pytest.mark.parametrize(("entry", "sentence"), ENDPOINT_MISTAKES)
    def test_of_endpoints_too(self, folder: Path, entry: str, sentence: str) -> None:
        assert complaint(folder, f"endpoints: [{entry}]").startswith(sentence)

    def test_a_value_is_blamed_on_the_source_it_came_from(self, folder: Path) -> None:
        text = yaml.safe_dump(ONE | {"server": {"port": 8000}})
        said = complaint(folder, text, {"KVROUTER_SERVER__PORT": "x"})
        assert said.startswith("server.port (environment variable KVROUTER_SERVER__PORT) must be a whole number")
        with pytest.raises(ConfigError, match=r"server\.port \(command line\) must be at least 1, not 0"):
            from_text(folder, text, flags={"server.port": 0})

    @pytest.mark.parametrize("text", ["", "server:\n", "endpoints: []"])
    def test_without_engines_there_is_nothing_to_route_to(self, folder: Path, text: str) -> None:
        assert complaint(folder, text).startswith("endpoints is empty and discovery finds none: name at least one")

    @pytest.mark.parametrize(
        ("text", "sentence"),
        [
            ("[http://a:1, http://A:1/]", "endpoints names address http://a:1 2 times"),
            ("[{url: http://a:1, name: n}, {url: http://b:1, name: n}]", "endpoints names name n 2 times"),
        ],
    )
    def test_an_engine_is_named_once(self, folder: Path, text: str, sentence: str) -> None:
        assert complaint(folder, f"endpoints: {text}").startswith(sentence)

    @pytest.mark.parametrize("text", ["- a\n", "just text\n", "5\n"])
    def test_a_file_is_a_mapping(self, folder: Path, text: str) -> None:
        assert "must be a mapping of sections" in complaint(folder, text)

    def test_an_llm_d_configuration_is_told_where_it_belongs(self, folder: Path) -> None:
        text = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\nplugins: []\n"
        assert "name it in one under scheduling.endpoint_picker_config" in complaint(folder, text)

    def test_a_file_is_there_and_is_text(self, folder: Path) -> None:
        with pytest.raises(ConfigError, match="cannot be read"):
            load(folder / "nowhere.yaml", environ={})
        (folder / "bytes.yaml").write_bytes(b"\xff\xfe\xfa")
        with pytest.raises(ConfigError, match="not UTF-8"):
            load(folder / "bytes.yaml", environ={})

    @given(
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(
                    _keys := st.sampled_from(
                        ["server", "port", "endpoints", "url", "redis", "scheduling", "plugins", "kv_events", "x"]
                    ),
                    inner,
                    max_size=3,
                )
            ),
            max_leaves=8,
        )
    )
    def test_any_content_loads_or_is_one_sentence(self, tmp_path_factory: pytest.TempPathFactory, content: Any) -> None:
        path = tmp_path_factory.mktemp("any") / "kv.yaml"
        path.write_text(yaml.safe_dump(content), encoding="utf-8")
        try:
            settings = load(path, environ={})
        except ConfigError as error:
            assert "\n" not in str(error)
        else:
            assert settings.endpoints or settings.discovery.dns


class TestSecrets:
    TEXT = """
endpoints: [{url: http://a:1, api_key: s3cret-1}]
server: {api_keys: [s3cret-2]}
upstream: {api_key: s3cret-3}
redis: {url: "redis://:s3cret-4@h/0"}
"""

    def test_are_never_shown(self, folder: Path) -> None:
        settings = from_text(folder, self.TEXT)
        for shown in (repr(settings), str(settings), json.dumps(dump(settings)), repr(settings.redis)):
            assert "s3cret" not in shown
        assert settings.redis.url is not None
        assert settings.redis.url.get_secret_value() == "redis://:s3cret-4@h/0"

    @pytest.mark.parametrize(
        "text",
        [
            "server: {api_keys: s3cret}",
            "server: {api_keys: [{s3cret: 1}]}",
            "server: {api_keys: [5353535353]}",
            "server: {api_keys: [{key: s3cret, sha256: s3cret}]}",
            "server: {api_keys: [{sha256: s3cret}]}",
            "server: {api_keys: ['sha256:s3cret']}",
            "server: {api_keys: [[s3cret]]}",
            "server: {api_keys: [{key: {s3cret: 1}}]}",
            "server: {api_keys: [{key: s3cret, name: 's3cret s3cret'}]}",
            "server: {api_keys: [s3cret, {key: s3cret, trusted: true}]}",
            "redis: {url: 's3cret://s3cret'}",
            "redis: {url: 5353535353}",
            "upstream: {api_key: [s3cret]}",
        ],
    )
    def test_not_in_a_complaint_either(self, folder: Path, text: str) -> None:
        said = complaint(folder, f"endpoints: [http://127.0.0.1:8001]\n{text}\n")
        assert "s3cret" not in said
        assert "5353" not in said

    def test_nor_when_they_stand_in_an_address(self, folder: Path) -> None:
        said = complaint(folder, "endpoints: ['http://user:s3cret@a:1']")
        assert "must not hold a user or password" in said
        assert "s3cret" not in said


class TestObjectives:
    """Those that keys may ask for are those that are configured: a misspelt one would be priority 0 in silence."""

    @pytest.mark.parametrize(
        ("listed", "mend"), [((), "add it there"), (("chat",), "use one of chat, or add it there")]
    )
    @pytest.mark.parametrize("name", ["api_keys", "admin_keys"])
    def test_a_key_of_the_settings_names_no_other(
        self, folder: Path, name: str, listed: tuple[str, ...], mend: str
    ) -> None:
        keys = ["s3cret", {"key": "s3cret2", "name": "web", "objectives": ["nosuch"]}]
        text = f"endpoints: ['http://a:1']\nserver:\n  {name}:\n  - s3cret\n  - {json.dumps(keys[1])}\n"
        assert complaint(folder, text + yaml.safe_dump(objectives(*listed))) == (
            f"server.{name}[1] (kv.yaml line 5) gives the key web an objective that flow_control.objectives does not "
            f"list, 'nosuch': {mend}"
        )

    def test_nor_where_keys_stand_twice_or_in_the_environment(self, folder: Path) -> None:
        one = {"sha256": digest("k"), "name": "web", "objectives": ["nosuch"]}
        assert complaint(folder, yaml.safe_dump(ONE | {"server": {"api_keys": ["a", "a", one]}})).startswith(
            "server.api_keys (kv.yaml line 4) gives the key web an objective"
        )
        environ = {"KVROUTER_SERVER__API_KEYS": json.dumps([one])}
        assert complaint(folder, yaml.safe_dump(ONE), environ).startswith(
            "server.api_keys[0] (environment variable KVROUTER_SERVER__API_KEYS) gives the key web an objective"
        )

    def test_those_that_are_listed_it_may(self, folder: Path) -> None:
        keys = [{"key": "k", "objectives": ["chat", "batch"]}]
        settings = from_text(folder, yaml.safe_dump(ONE | objectives("batch", "chat") | {"server": {"api_keys": keys}}))
        assert settings.server.api_keys[0].objectives == ("chat", "batch")


class TestFiles:
    def test_a_byte_order_mark_is_no_part_of_the_first_key(self, folder: Path) -> None:
        (folder / "keys").write_bytes(b"\xef\xbb\xbfk1\r\nk2\r\n")
        settings = from_text(folder, yaml.safe_dump(ONE | {"server": {"api_keys_file": "keys"}}))
        assert [key.digest for key in settings.server.api_keys] == [digest("k1"), digest("k2")]

    def test_a_key_file_adds_to_the_keys(self, folder: Path) -> None:
        (folder / "keys").write_text("# ours\nk1\n\n k2 \nk0\n", encoding="utf-8")
        settings = from_text(folder, yaml.safe_dump(ONE | {"server": {"api_keys": ["k0"], "api_keys_file": "keys"}}))
        assert [key.digest for key in settings.server.api_keys] == [digest(key) for key in ("k0", "k1", "k2")]

    def test_a_key_file_may_hold_digests_and_rights(self, folder: Path) -> None:
        (folder / "keys").write_text(
            f"sha256:{digest('k1')} name=web tenant=shop objectives=chat,batch max_priority=5\n"
            f"SHA256:{digest('k2').upper()}\n"
            "k3 trusted=true requests_per_min=60 concurrent=2\n",
            encoding="utf-8",
        )
        web, plain, gate = from_text(folder, yaml.safe_dump(FILE | objectives("chat", "batch"))).server.api_keys
        assert (web.digest, web.name, web.tenant, web.objectives, web.max_priority, web.trusted) == (
            *(digest("k1"), "web", "shop", ("chat", "batch"), 5, False),
        )
        assert (plain.digest, plain.name, plain.tenant, plain.trusted) == (
            *(digest("k2"), f"key-{digest('k2')[:8]}", None, False),
        )
        assert (gate.digest, gate.trusted) == (digest("k3"), True)
        assert gate.rate == RateSettings(requests_per_min=60, concurrent=2)

    @pytest.mark.parametrize(
        ("line", "said"),
        [
            ("s3cret s3cret", "whose line 2 has a word after the key that is no right"),
            ("s3cret sha256=s3cret", "has a word after the key that is no right"),
            ("sha256:s3cret", "whose line 2 holds a digest that is not 64 hex digits"),
            ("s3cret max_priority=s3cret", "whose line 2 max_priority= must be a whole number"),
            (f"s3cret max_priority={'9' * 9999}", "whose line 2 max_priority= must be at most 2147483647"),
            ("s3cret trusted=s3cret", "whose line 2 trusted= must be true or false"),
            ("s3cret requests_per_min=0", "whose line 2 requests_per_min= must be at least 1"),
            ("s3cret tokens_per_min=-9", "whose line 2 tokens_per_min= must be at least 1"),
            ("s3cret concurrent=1.5", "whose line 2 concurrent= must be a whole number"),
            ("s3cret name=s3cret,", "whose line 2 name= must be of the form"),
            ("s3cret tenant=a tenant=b", "whose line 2 has tenant= twice: keep one of them"),
            ("s3cret\x01", "whose line 2 holds a key with a line break or another control character"),
            (
                "good name=other",
                "_file names keys, whose line 2 holds the key other again, with other rights than line 1: keep one",
            ),
            (
                "s3cret name=web objectives=chta",
                "whose line 2 gives the key web an objective that flow_control.objectives does not list, 'chta': "
                "use one of batch, chat, or add it there",
            ),
        ],
    )
    def test_a_mistake_in_a_key_file_names_its_line_and_quotes_nothing(
        self, folder: Path, line: str, said: str
    ) -> None:
        (folder / "keys").write_text(f"good\n{line}\n", encoding="utf-8")
        complained = complaint(folder, yaml.safe_dump(FILE | objectives("chat", "batch")))
        assert said in complained
        assert "s3cret" not in complained
        assert "Input" not in complained

    def test_a_key_of_the_settings_that_stands_in_the_file_with_other_rights_is_named_there(self, folder: Path) -> None:
        (folder / "keys").write_text("other\ns3cret name=web\n", encoding="utf-8")
        server = {"server": {"api_keys": ["s3cret"], "api_keys_file": "keys"}}
        assert complaint(folder, yaml.safe_dump(ONE | server)) == (
            "server.api_keys_file names keys, whose line 2 holds the key web again, with other rights than "
            "server.api_keys: keep one of them"
        )

    def test_a_key_is_a_digest_from_the_moment_it_is_read(self, folder: Path) -> None:
        given = ["k0", f"sha256:{digest('k1')}", {"key": "k2", "name": "web"}, {"sha256": digest("k3")}, "k0"]
        settings = from_text(folder, yaml.safe_dump(ONE | {"server": {"api_keys": given}}))
        assert [key.digest for key in settings.server.api_keys] == [digest(f"k{number}") for number in range(4)]
        assert all(key.key is None for key in settings.server.api_keys)

    def test_keys_may_stand_in_the_environment_as_digests(self) -> None:
        environ = {"KVROUTER_ENDPOINTS": "http://a:1", "KVROUTER_SERVER__API_KEYS": f"sha256:{digest('k0')},k1"}
        assert [key.digest for key in load(environ=environ).server.api_keys] == [digest("k0"), digest("k1")]

    @pytest.mark.parametrize("content", ["", "# nothing\n\n"])
    def test_a_key_file_without_keys_does_not_open_the_router(self, folder: Path, content: str) -> None:
        (folder / "keys").write_text(content, encoding="utf-8")
        assert "would leave the router open" in complaint(
            folder, yaml.safe_dump(ONE | {"server": {"api_keys_file": "keys"}})
        )

    def test_a_missing_key_file_is_named(self, folder: Path) -> None:
        said = complaint(folder, yaml.safe_dump(ONE | {"server": {"api_keys_file": "keys"}}))
        assert said.startswith("server.api_keys_file names keys, which cannot be read")

    @pytest.mark.parametrize("key", ["one\ntwo", "one\r\ntwo", "a\x00b", "a\x7fb", "a\x1bb"])
    def test_a_key_that_no_client_can_send_is_refused(self, folder: Path, key: str) -> None:
        for written in (key, {"key": key}):
            said = complaint(folder, yaml.safe_dump(ONE | {"server": {"api_keys": [written]}}))
            assert said.startswith(
                "server.api_keys[0] (kv.yaml line 5) holds a key with a line break or another control"
            )

    def test_a_key_with_spaces_in_it_can_be_sent(self, folder: Path) -> None:
        settings = from_text(folder, yaml.safe_dump(ONE | {"server": {"api_keys": [" my key\n"]}}))
        assert settings.server.api_keys[0].digest == digest("my key")

    def test_an_empty_key_is_refused(self, folder: Path) -> None:
        assert "holds an empty key" in complaint(folder, yaml.safe_dump(ONE | {"server": {"api_keys": [" "]}}))

    def test_relative_paths_start_at_the_file(self, folder: Path) -> None:
        settings = from_text(
            folder,
            yaml.safe_dump(
                ONE
                | {
                    "tokenization": {"default": "./tok", "models": {"m": "../t", "n": "org/name"}},
                    "upstream": {"ca_file": "ca.pem"},
                }
            ),
        )
        assert settings.tokenization.default == f"{folder}/tok"
        assert settings.tokenization.models == {"m": f"{folder}/../t", "n": "org/name"}
        assert settings.upstream.ca_file == f"{folder}/ca.pem"

    def test_every_key_that_names_a_file_does(self, folder: Path) -> None:
        for section, field in Settings.model_fields.items():
            model = field.annotation
            names = model.model_fields if isinstance(model, type) and issubclass(model, BaseModel) else {}
            for name in names:
                named = f"{section}.{name}"
                if not name.endswith("_file") and named not in ("log.requests", "scheduling.endpoint_picker_config"):
                    continue
                (folder / "here").write_text("k\n", encoding="utf-8")
                cert = {"client_cert_file": "here"}
                pairs = {"server": {"tls_cert_file": "here"}, "upstream": cert, "redis": cert}
                pair = pairs.get(section, {})
                settings = from_text(folder, yaml.safe_dump(ONE | {section: pair | {name: "here"}}))
                assert getattr(getattr(settings, section), name) == f"{folder}/here", named


class TestDocumentation:
    def test_is_what_the_tree_says(self) -> None:
        assert DOC.read_text(encoding="utf-8") == render(), "python -m router.settings.doc > docs/configuration.md"

    def test_has_every_key_and_a_meaning_for_it(self) -> None:
        text = render()
        for section, field in Settings.model_fields.items():
            model = field.annotation
            keys = model.model_fields if isinstance(model, type) and issubclass(model, BaseModel) else {}
            for key in keys:
                row = next(line for line in text.splitlines() if line.startswith(f"| `{section}.{key}` |"))
                assert row.rstrip(" |").count(" | ") == 3, f"{section}.{key} has no meaning: write a docstring under it"

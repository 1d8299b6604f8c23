"""The demonstration: what it would start, and what it tells people to type."""

from __future__ import annotations

import ast
import json
import shlex
import socket
from pathlib import Path

import pytest

from loadtest.demo.children import plain_environment
from loadtest.demo.run import DemoError, Options, require_free, router_config, snippet, what_to_type
from router.core import Role
from router.settings import load

URLS = [f"http://127.0.0.1:{port}" for port in range(4001, 4005)]


def test_the_routers_configuration_is_one_that_starts(tmp_path: Path) -> None:
    path = tmp_path / "kvrouter.yaml"
    path.write_text(json.dumps(router_config(Options(port=8123), URLS)), encoding="utf-8")
    settings = load(path, environ={})
    assert settings.server.port == 8123
    assert [(endpoint.name, endpoint.role) for endpoint in settings.endpoints] == [
        ("prefill-0", Role.PREFILL),
        ("prefill-1", Role.PREFILL),
        ("decode-0", Role.DECODE),
        ("decode-1", Role.DECODE),
    ]
    assert settings.index.backend == "auto"
    assert settings.redis.url is None


def test_requests_are_recorded_whole_where_that_is_asked_for(tmp_path: Path) -> None:
    path, log = tmp_path / "kvrouter.yaml", str(tmp_path / "requests.log")
    path.write_text(json.dumps(router_config(Options(requests=log), URLS)), encoding="utf-8")
    settings = load(path, environ={})
    assert settings.log.requests == log
    assert settings.usage.inject_stream_usage
    assert "log" not in router_config(Options(), URLS)


def test_without_prefill_engines_the_others_serve_whole_requests() -> None:
    assert Options(prefill=0, decode=2).roles == ("both", "both")


def test_the_curl_line_is_one_line_with_a_json_body() -> None:
    (line,) = [line for line in what_to_type(8123).splitlines() if line.startswith("curl ")]
    words = shlex.split(line)
    assert "http://127.0.0.1:8123/v1/chat/completions" in words
    assert json.loads(words[words.index("-d") + 1])["stream"] is True


def test_the_snippet_is_printed_as_it_is_and_is_python() -> None:
    assert snippet(8123) in what_to_type(8123)
    ast.parse(snippet(8123))
    assert 'base_url="http://127.0.0.1:8123/v1"' in snippet(8123)


def test_a_busy_port_is_one_sentence_with_the_mend() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(DemoError, match=rf"port {port} .* \(address already in use\): stop what listens there, or"):
            require_free(port)
    require_free(port)


def test_settings_in_the_environment_do_not_reach_a_demonstration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVROUTER_SERVER__PORT", "1")
    monkeypatch.setenv("UNRELATED", "stays")
    environ = plain_environment()
    assert not [name for name in environ if name.startswith("KVROUTER_")]
    assert environ["UNRELATED"] == "stays"

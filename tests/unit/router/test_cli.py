"""The `kvrouter` command: what flags become, and that bad input of any kind is one sentence and exit code 2."""

from __future__ import annotations

import io
import os
import re
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from router.cli import run
from router.settings import load
from router.settings.keys import digest

ROOT = Path(__file__).parents[3]
ENGINE = "http://127.0.0.1:8001"


@pytest.fixture(autouse=True)
def no_settings_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("KVROUTER_")]:
        monkeypatch.delenv(name)


def complaint(capsys: pytest.CaptureFixture[str], arguments: Sequence[str]) -> str:
    """What a command that must fail says, without the program's name."""
    assert run(arguments) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    (line,) = shown.err.splitlines()
    return line.removeprefix("kvrouter: ")


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    """The settings that `serve` would use."""
    assert run(["serve", *arguments, "--print-config"]) == 0
    found = yaml.safe_load(capsys.readouterr().out)
    assert isinstance(found, dict)
    return found


class TestServe:
    def test_flags_become_settings(self, capsys: pytest.CaptureFixture[str]) -> None:
        settings = printed(
            capsys,
            *(ENGINE, "http://127.0.0.1:8002", "--prefill", "http://p:1", "--decode", "http://d:1"),
            *("--host", "0.0.0.0", "--port", "9000", "--tokenizer", "org/model", "--log-level", "debug"),
        )
        assert [(endpoint["url"], endpoint["role"]) for endpoint in settings["endpoints"]] == [
            (ENGINE, "both"),
            ("http://127.0.0.1:8002", "both"),
            ("http://p:1", "prefill"),
            ("http://d:1", "decode"),
        ]
        assert (settings["server"]["host"], settings["server"]["port"]) == ("0.0.0.0", 9000)
        assert settings["tokenization"]["default"] == "org/model"
        assert settings["log"]["level"] == "debug"

    def test_a_redis_address_switches_to_the_shared_index(self, capsys: pytest.CaptureFixture[str]) -> None:
        settings = printed(capsys, ENGINE, "--redis", "redis://127.0.0.1:6379")
        assert settings["index"]["backend"] == "redis"

    def test_secrets_are_not_printed(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert run(["serve", ENGINE, "--api-key", "s3cret", "--redis", "redis://:s3cret@h", "--print-config"]) == 0
        assert "s3cret" not in capsys.readouterr().out

    def test_what_is_printed_is_a_configuration(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        first = printed(capsys, ENGINE)
        path = tmp_path / "kv.yaml"
        path.write_text(yaml.safe_dump(first), encoding="utf-8")
        assert printed(capsys, "--config", str(path)) == first

    def test_file_then_environment_then_flags(
        self, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "kv.yaml"
        path.write_text(
            f"endpoints: ['{ENGINE}']\nserver: {{host: 10.0.0.1, port: 1, settle_s: 1}}\n", encoding="utf-8"
        )
        monkeypatch.setenv("KVROUTER_CONFIG", str(path))
        monkeypatch.setenv("KVROUTER_SERVER__PORT", "2")
        monkeypatch.setenv("KVROUTER_SERVER__SETTLE_S", "2")
        server = printed(capsys, "--port", "3")["server"]
        assert (server["host"], server["settle_s"], server["port"]) == ("10.0.0.1", 2.0, 3)


class TestBadInput:
    @pytest.mark.parametrize(
        ("arguments", "sentence"),
        [
            (["serve"], "endpoints is empty and discovery finds none: name at least one engine"),
            (["serve", "localhost:8001"], "endpoints[0].url (command line) must be an http:// or https:// address"),
            (["serve", ENGINE, ENGINE], f"endpoints names address {ENGINE} 2 times"),
            (["serve", ENGINE, "--port", "x"], "Invalid value for '--port'"),
            (["serve", ENGINE, "--port", "70000"], "server.port (command line) must be at most 65535, not 70000"),
            (["serve", ENGINE, "--log-level", "loud"], "log.level (command line) must be 'debug', 'info'"),
            (["serve", ENGINE, "--redis", "localhost"], "redis.url (command line) has no scheme: write redis://"),
            (["serve", ENGINE, "--api-key", ""], "server.api_keys[0] (command line) holds an empty key"),
            (["serve", "--prefill", ENGINE], "endpoints has only role prefill"),
            (["serve", "--config", "/nowhere.yaml"], "the configuration file /nowhere.yaml cannot be read"),
            (["serve", "--wibble"], "No such option: --wibble"),
            (["wibble"], "No such command 'wibble'"),
            (["check"], "endpoints is empty"),
            (["check", "nothing"], "nothing is neither a file nor an address"),
            (["check", "nothing.yaml"], "the configuration file nothing.yaml cannot be read"),
            (["check", "a.yaml", "b.yaml"], "b.yaml is one configuration file too many"),
            (["demo", "--port", "0"], "Invalid value for '--port'"),
            (["demo", "--decode", "0"], "Invalid value for '--decode'"),
        ],
    )
    def test_is_one_sentence(self, capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str) -> None:
        assert complaint(capsys, arguments).startswith(sentence)

    def test_an_unknown_variable_stops_the_start(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("KVROUTER_SERVER_PORT", "9000")
        assert "did you mean KVROUTER_SERVER__PORT?" in complaint(capsys, ["serve", ENGINE])

    def test_a_decider_that_is_not_there_is_named(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        path = tmp_path / "kv.yaml"
        path.write_text(f"endpoints: ['{ENGINE}']\nscheduling: {{decider: wibble}}\n", encoding="utf-8")
        assert "wibble" in complaint(capsys, ["check", str(path)])


class TestHelp:
    def test_lists_every_command(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert run(["--help"]) == 0
        shown = capsys.readouterr().out
        for command in ("serve", "check", "demo", "sim", "version"):
            assert re.search(rf"\b{command}\b", shown)

    @pytest.mark.parametrize("command", ["serve", "check", "demo"])
    def test_of_a_command_names_its_options(self, capsys: pytest.CaptureFixture[str], command: str) -> None:
        assert run([command, "--help"]) == 0
        assert f"Usage: kvrouter {command}" in capsys.readouterr().out

    def test_version(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert run(["version"]) == 0
        assert re.fullmatch(r"kvrouter \S+ \(Python \S+\)\n", capsys.readouterr().out)


def kvrouter(*arguments: str, environment: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """The command as a process of its own; `environment`: by default this process's."""
    command = [sys.executable, "-m", "router", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False)


class TestProcess:
    @pytest.mark.parametrize(
        ("host", "why"),
        [("192.0.2.1", "not an address of this machine"), ("no.such.host.invalid", "no such host|cannot be resolved")],
    )
    def test_an_address_that_is_not_ours_is_one_sentence(self, host: str, why: str) -> None:
        done = kvrouter("serve", "--host", host, ENGINE)
        assert done.returncode == 2
        assert re.fullmatch(rf"kvrouter: server.host: cannot listen on {host}:8000 \(.*({why}).*\): .*\n", done.stderr)

    def test_check_of_an_engine_that_is_not_there_fails_with_a_table(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        done = kvrouter("check", f"http://127.0.0.1:{port}")
        assert done.returncode == 1
        assert f"trouble: 127.0.0.1:{port} cannot be reached (connection refused)" in done.stdout
        assert done.stderr == ""

    @pytest.mark.parametrize("workers", ["1", "2"])
    def test_a_busy_port_of_administration_is_told_as_such(self, workers: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server, socket.create_server(("127.0.0.1", 0)) as free:
            taken, port = server.getsockname()[1], free.getsockname()[1]
            free.close()
            environment = os.environ | {"KVROUTER_SERVER__ADMIN_PORT": str(taken)}
            done = kvrouter("serve", ENGINE, "--port", str(port), "--workers", workers, environment=environment)
        assert done.returncode == 2
        assert done.stderr == (
            f"kvrouter: server.admin_port: cannot listen on 127.0.0.1:{taken} (address already in use): "
            "stop what listens there, or give another server.admin_port\n"
        )

    @pytest.mark.parametrize("command", [["serve", "--port", "{port}", ENGINE], ["demo", "--port", "{port}"]])
    def test_a_busy_port_is_one_sentence(self, command: list[str]) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = str(server.getsockname()[1])
            done = kvrouter(*(word.format(port=port) for word in command))
        assert done.returncode == 2
        line = done.stderr.splitlines()[-1]
        assert line.startswith("kvrouter: ")
        assert port in line
        assert "address already in use" in line
        assert "Traceback" not in done.stderr


class TestHashKey:
    def test_its_output_is_an_api_key_for_the_settings(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("sys.stdin", io.StringIO("s3cret\n"))
        assert run(["hash-key"]) == 0
        shown = capsys.readouterr().out.strip()
        assert "s3cret" not in shown
        monkeypatch.setenv("KVROUTER_SERVER__API_KEYS", shown)
        assert load(flags={"endpoints": [ENGINE]}).server.api_keys[0].digest == digest("s3cret")

    @pytest.mark.parametrize("given", ["one\ntwo\n", "a\r\nb", "a\x00b", "\x1b[A", "\udc80"])
    def test_what_no_client_can_send_is_not_hashed(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, given: str
    ) -> None:
        monkeypatch.setattr("sys.stdin", io.StringIO(given))
        said = complaint(capsys, ["hash-key"])
        assert "which no client can send in a header: pipe one key in" in said
        assert given not in said

    def test_what_is_no_text_is_not_hashed(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\xff\xfe"), encoding="utf-8"))
        assert complaint(capsys, ["hash-key"]).startswith("standard input is not UTF-8 text")

    def test_nor_is_it_a_key_on_the_command_line(self, capsys: pytest.CaptureFixture[str]) -> None:
        said = complaint(capsys, ["serve", ENGINE, "--print-config", "--api-key", "one\ntwo"])
        assert said.startswith("server.api_keys[0] (command line) holds a key with a line break")

    def test_nothing_to_hash_is_bad_input(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("sys.stdin", io.StringIO(" \n"))
        assert complaint(capsys, ["hash-key"]).startswith("standard input holds no key: pipe one in")


def test_what_serve_could_not_open_is_not_printed_as_good(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KVROUTER_LOG__REQUESTS", str(tmp_path))
    assert complaint(capsys, ["serve", ENGINE, "--print-config"]).startswith(f"log.requests: {tmp_path} cannot be")

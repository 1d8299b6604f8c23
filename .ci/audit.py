"""Asks PyPI which releases of the lock file have known vulnerabilities. Exit code 1: some have, each with its fix.

A release that is known to have some is asked about first: where that answer does not come (no network, or a mirror that
serves packages and no advisories) nothing was audited, and that is said as a skip. With AUDIT_REQUIRED=1 it fails.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx

CANARY = ("jinja2", "3.1.2")
"""CVE-2024-22195 and others."""
SERVICE = "https://pypi.org"
LOCKED = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", re.MULTILINE)

Ask = Callable[[str, str], list[dict[str, Any]] | None]
"""Name and version to advisories; None: they cannot be told."""


def asking(client: httpx.Client) -> Ask:
    def ask(name: str, version: str) -> list[dict[str, Any]] | None:
        try:
            answer = client.get(f"/pypi/{name}/{version}/json")
            found = answer.json()["vulnerabilities"] if answer.status_code == 200 else None
        except (httpx.HTTPError, ValueError, KeyError, TypeError):
            return None
        return [entry for entry in found if not entry.get("withdrawn")] if isinstance(found, list) else None

    return ask


def audit(lock: str, ask: Ask, say: Callable[[str], None], *, required: bool = False) -> int:
    """The exit code."""
    if not ask(*CANARY):
        say("audit SKIPPED: nothing was audited, no vulnerability database can be reached from here")
        return 1 if required else 0
    releases = sorted(set(LOCKED.findall(lock)))
    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(lambda release: ask(*release), releases))
    unknown = [f"{name} {version}" for (name, version), found in zip(releases, answers, strict=True) if found is None]
    bad = 0
    for (name, version), found in zip(releases, answers, strict=True):
        for entry in found or ():
            bad += 1
            names = ", ".join([entry.get("id", "?"), *entry.get("aliases", ())])
            say(f"{name} {version}: {names}; fixed in {', '.join(entry.get('fixed_in') or ['no release yet'])}")
    say(f"audit: {len(releases) - len(unknown)} of {len(releases)} releases asked about, {bad} advisories")
    if unknown:
        say(f"audit: could not be told: {', '.join(unknown)}")
    return 1 if bad or unknown else 0


def main() -> int:
    lock = Path(sys.argv[1] if len(sys.argv) > 1 else "requirements.lock").read_text(encoding="utf-8")
    with httpx.Client(base_url=SERVICE, timeout=20, follow_redirects=True) as client:
        return audit(lock, asking(client), print, required=os.environ.get("AUDIT_REQUIRED") == "1")


if __name__ == "__main__":
    sys.exit(main())

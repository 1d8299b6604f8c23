"""The router's own tokens are the engine's: rendered with its template, cut by its tokenizer."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from router.cli import run
from router.core import Api
from router.tokenization.errors import NotRenderable
from router.tokenization.exact import client_tokens, local_tokens
from router.tokenization.loader import load_tokenizer
from tests.real_vllm.build import MODEL
from tests.real_vllm.corpus import corpus
from tests.real_vllm.engines import Engine
from tests.real_vllm.workload import CHAT, COMPLETIONS, workload

LENGTH = 4096


def test_local_tokens_are_what_the_engine_renders(aggregated: list[Engine], note: Callable[[str], None]) -> None:
    tokenizer = load_tokenizer(str(MODEL), offline=True)
    asked = [(case.name, case.path, body) for case in corpus() if (body := _object(case.content)) is not None]
    asked += [(ask.kind, ask.path, ask.body) for ask in workload(60, seed=21)]
    compared = 0
    differing = []
    for name, path, body in asked:
        if path not in (CHAT, COMPLETIONS):
            continue
        answer = aggregated[0].post(f"{path}/render", body)
        if answer.status_code != 200:
            continue
        rendered = answer.json()
        theirs = [one["token_ids"] for one in (rendered if isinstance(rendered, list) else [rendered])]
        api = Api.CHAT if path == CHAT else Api.COMPLETIONS
        try:
            ours = client_tokens(body) if api is Api.COMPLETIONS else None
            ours = ours or local_tokens(tokenizer, api, body, LENGTH)
        except NotRenderable as error:
            differing.append(f"{name}: {error}")
            continue
        compared += 1
        if list(ours.ids) != max(theirs, key=len):
            differing.append(f"{name}: {len(ours.ids)} tokens here, {len(max(theirs, key=len))} there")
    note(f"{compared} prompts tokenized here and by the engine: {len(differing)} differ")
    assert not differing, "\n".join(differing)
    assert compared > 100


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_local_tokens_are_what_the_engine_tokenizes(aggregated: list[Engine], path: str) -> None:
    tokenizer = load_tokenizer(str(MODEL), offline=True)
    for ask in workload(40, seed=22):
        if ask.path != path or isinstance(ask.body.get("prompt"), list):
            continue
        api = Api.CHAT if path == CHAT else Api.COMPLETIONS
        ours = local_tokens(tokenizer, api, ask.body, LENGTH)
        theirs = aggregated[0].post("/tokenize", ask.body)
        assert list(ours.ids) == theirs.json()["tokens"], ask.kind


def test_check_finds_nothing_wrong(aggregated: list[Engine], capsys: pytest.CaptureFixture[str]) -> None:
    code = run(["check", *(engine.url for engine in aggregated)])
    said = capsys.readouterr().out
    assert code == 0, said
    assert said.count("equal (") == 2
    assert "trouble" not in said


def _object(content: bytes) -> dict[str, Any] | None:
    try:
        body = json.loads(content)
    except ValueError:
        return None
    return body if isinstance(body, dict) else None

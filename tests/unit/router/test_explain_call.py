from __future__ import annotations

import io

import msgspec
from rich.console import Console

from router.explain_call import show
from router.scheduling.cost import Terms
from router.scheduling.explanation import Explanation


def test_the_table_has_every_term_of_the_cost() -> None:
    terms = {field: 0.001 * number for number, field in enumerate(Terms.__struct_fields__) if field not in APART}
    row = {
        "endpoint": "a",
        "role": "both",
        "chosen_for": "decode",
        "matched_tokens": 0,
        "requests": 0,
        "prefill_confidence": 0.5,
        "terms": {"total": sum(terms.values())} | terms,
        "predicted_ttft_s": 0.1,
        "predicted_tpot_s": 0.01,
        "scores": {},
    }
    told = {
        "reason": "aggregated",
        "decode": ["a"],
        "prefill": [],
        "prompt_tokens": 1,
        "token_source": "local",
        "blocks": 0,
        "candidates": [row],
    }
    written = io.StringIO()
    show(msgspec.convert(told, Explanation), Console(file=written, width=400))
    names, cells = (line.split() for line in written.getvalue().splitlines()[2:4])
    columns = dict(zip(names[-len(terms) - 1 :], map(float, cells[-len(terms) - 1 :]), strict=True))
    cost = columns.pop("cost")
    assert set(columns) == set(terms)
    assert abs(sum(columns.values()) - cost) < 1e-3 * len(terms)


APART = ("total", "ttft", "tpot")

"""Requests that schemathesis makes up from the OpenAPI document, valid or not: none is answered with 5xx.

The same ones every time. FUZZ_EXAMPLES=1000 makes more of them and adds every bound of every field, which
takes minutes; FUZZ_SEED makes other ones.
"""

from __future__ import annotations

import os
from typing import Any

import hypothesis
import pytest
import schemathesis
from hypothesis import HealthCheck
from schemathesis.checks import content_type_conformance, status_code_conformance

from specllama.server.app import ROUTES, document
from tests.fuzz.campaign import input_of, judged
from tests.fuzz.parts.http import Http
from tests.support.serving import Server

THOROUGH = "FUZZ_EXAMPLES" in os.environ
EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "40"))
SEED = int(os.environ.get("FUZZ_SEED", "1"))
MOST = 4  # tokens
LENGTHS = ("max_completion_tokens", "max_tokens", "n_predict")  # the first one given holds
CHECKS = [status_code_conformance, content_type_conformance]
UNSUPPORTED = {(501, "/infill"), (501, "/slots/{slot}")}  # needs another model, and --slot-save-path

config = schemathesis.Config.from_dict({"phases": {"coverage": {"enabled": THOROUGH}}})
_LASTING = [route for route in ROUTES if route.path != "/drain"]  # that route ends the server
schema = schemathesis.openapi.from_dict(document(_LASTING, keyed=False), config=config)


def asks_for_many(value: Any) -> bool:
    """Whether this is a valid length of more than some tokens; -1 and -2 are without end."""
    return isinstance(value, int) and not isinstance(value, bool) and -2 <= value < 2**31 and value != 0


def shortened(body: Any, path: str = "") -> Any:
    """Short texts: valid lengths become short ones, absent ones are added, wrong ones stay what they are."""
    if not isinstance(body, dict) or not {"prompt", "messages"} & set(body):
        return body
    if path.startswith("/api/"):
        options = body.get("options") or {}
        short = {"options": {**options, "num_predict": MOST}} if isinstance(options, dict) else {}
        return {**body, **short}
    bounded = {k: 1 + v % MOST if k in LENGTHS and asks_for_many(v) else v for k, v in body.items()}
    if all(bounded.get(name) is None for name in LENGTHS):
        bounded["max_tokens"] = MOST
    return bounded


@pytest.mark.timeout(1800 if THOROUGH else 120)
@schema.parametrize()
@hypothesis.seed(SEED)
@hypothesis.settings(
    max_examples=EXAMPLES,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
    phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
)
def test_no_request_causes_a_server_error(case: schemathesis.Case, server: Server) -> None:
    case.body = shortened(case.body, case.path)
    response = case.call(base_url=server.url, timeout=60)
    case.validate_response(response, checks=CHECKS)
    assert response.status_code < 500 or (response.status_code, case.path) in UNSUPPORTED


def test_lengths_are_bounded_and_their_validation_is_not() -> None:
    given = [{"prompt": "x"}, {"prompt": "x", "max_tokens": None}, {"prompt": "x", "n_predict": -1}]
    given += [{"messages": [], "max_tokens": v} for v in (1, 10**6, 0, -3, 2**31, 2**70, "5", True, 1.5, [])]
    made = [shortened(body) for body in given]
    lengths = [next((b[name] for name in LENGTHS if b.get(name) is not None), None) for b in made]
    assert lengths == [4, 4, 4, 2, 1, 0, -3, 2**31, 2**70, "5", True, 1.5, []]
    ollama = [
        shortened({"prompt": "x", "options": o}, "/api/generate")["options"] for o in (None, {"a": 1}, 5)
    ]
    assert ollama == [{"num_predict": 4}, {"a": 1, "num_predict": 4}, 5]
    assert shortened([1]) == [1]
    assert shortened({"content": "x"}) == {"content": "x"}


@pytest.mark.timeout(1800 if THOROUGH else 120)
def test_raw_requests_get_documented_statuses(server: Server) -> None:
    """Those of `python -m tests.fuzz --only http`, fewer of them."""
    part = Http(server)
    part.set_up()
    for index in range(3 * EXAMPLES):
        data = input_of(part, SEED, index)
        verdict = judged(part, data)
        assert not verdict["reason"], f"input {index}: {verdict['reason']}\n{data[:500]!r}"

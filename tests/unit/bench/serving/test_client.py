"""Addresses of servers, as users write them."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.bench.serving.client import parse_address
from specllama.errors import UsageError


@pytest.mark.parametrize(
    ("text", "bases", "loopback"),
    [
        ("http://127.0.0.1:8080", ["http://127.0.0.1:8080/v1"], True),
        ("localhost:8080/v1/", ["http://localhost:8080/v1"], True),
        ("https://h/v1/chat/completions", ["https://h/v1"], False),
        ("h:1/v1/completions", ["http://h:1/v1"], False),
        ("https://h/api/v1", ["https://h/api/v1"], False),
        ("https://h/openai", ["https://h/openai/v1", "https://h/openai"], False),
        ("http://[::1]:80", ["http://[::1]:80/v1"], True),
    ],
)
def test_an_address_gives_the_urls_to_try(text: str, bases: list[str], loopback: bool) -> None:
    address = parse_address(text)
    assert (list(address.bases), address.loopback) == (bases, loopback)


@given(st.text(max_size=60))
def test_any_text_is_an_address_or_a_usage_error(text: str) -> None:
    with contextlib.suppress(UsageError):
        assert all(base.startswith(("http://", "https://")) for base in parse_address(text).bases)

"""Where a text must end: limits that follow from its request."""

from __future__ import annotations

from dataclasses import replace

from specllama.core.sampling.params import UNTIL_CONTEXT_FULL, SamplingParams
from specllama.core.sequence import Request
from specllama.errors import ContextLengthError, UsageError, option


def ends_ignored(params: SamplingParams) -> bool:
    """Whether end tokens are never chosen."""
    return params.ignore_eos or params.max_tokens == UNTIL_CONTEXT_FULL


def with_forced_limit(request: Request, n_vocab: int, n_ctx: int) -> Request:
    """The request with max_tokens limited to the number of forced ids.

    Raises UsageError for invalid ids and for a grammar together with forced ids, ContextLengthError where
    prompt and ids do not fit into the context.
    """
    forced, params = request.forced, request.params
    if forced is None:
        return request
    if request.mask is not None:
        raise UsageError("a given text cannot be combined with a grammar")
    if not forced:
        raise UsageError("the given text is empty")
    if not all(isinstance(i, int) and 0 <= i < n_vocab for i in forced):
        raise UsageError(f"token ids of a given text must be from 0 to {n_vocab - 1}")
    n_prompt, n = len(request.prompt), len(forced)
    n = min(n, params.max_tokens) if params.max_tokens > 0 else n
    if n_prompt + n > n_ctx:
        raise ContextLengthError(
            f"the prompt has {n_prompt} tokens, the given text {n}, and the context {n_ctx}",
            f"use {option('n_ctx', n_prompt + n)} or more, or write fewer tokens of it",
        )
    return replace(request, params=replace(params, max_tokens=n))


def context_length_error(n_prompt: int, n_ctx: int, at_least: bool = False) -> ContextLengthError:
    """The error for a prompt of `n_prompt` tokens, or at least as many, which the context cannot hold."""
    return ContextLengthError(
        f"the prompt has {'at least ' if at_least else ''}{n_prompt} tokens, which exceeds the available "
        f"context size of {n_ctx}",
        f"use {option('n_ctx', n_prompt + 256)} or more",
        {"n_prompt_tokens": n_prompt, "n_ctx": n_ctx},
    )

"""LLM: the API for scripts and notebooks. Threads may share one."""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Callable, Generator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from specllama.api.base import BaseLLM, Tokenizer
from specllama.api.outputs import (
    Delta,
    EmbeddingRequestOutput,
    PendingCompletion,
    PendingRequest,
    RequestOutput,
    ScoringOutput,
    ScoringRequestOutput,
)
from specllama.api.prompts import (
    Message,
    Params,
    Prediction,
    Prompt,
    conversations,
    prompt_or_messages,
    prompts_or_ids,
)
from specllama.calls import history
from specllama.client import protocol
from specllama.client.client import Submission
from specllama.errors import SpecllamaError, UsageError
from specllama.text.prompt_parts import template_variables

_Inbox = queue.SimpleQueue[tuple[PendingRequest, PendingCompletion, protocol.Message | SpecllamaError]]


class LLM(BaseLLM):
    """A loaded pair of models that writes texts; a context manager that ends its engine process.

        llm = LLM()
        print(llm.generate("def fib(n):")[0].outputs[0].text)

    Its texts are those of the target alone, with drafts or without.
    """

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt] | None = None,
        sampling_params: Params | Sequence[Params] | None = None,
        *,
        prompt_token_ids: Sequence[int] | Sequence[Sequence[int]] | None = None,
        use_tqdm: bool | Callable[..., Any] = False,
        n: int | None = None,
        speculate: bool = True,
        prediction: Prediction = None,
    ) -> list[RequestOutput]:
        """Continue each prompt, without a chat template; the outputs are in the prompts' order. All prompts
        are submitted at once and decoded together, `max_num_seqs` at a time.

        sampling_params: one for all, or one for each prompt. A dict sets some parameters, None sets none; the
        others are those that the model's file recommends, or the defaults. prompt_token_ids: in place of
        `prompts`. use_tqdm: whether to show a progress bar, or what makes one. n: texts for each prompt, in
        place of that parameter; the first has the seed itself, the others have seeds derived from it.
        speculate: False decodes plainly. prediction: a text that most of the output is expected to be, as the
        old text of a file that is rewritten, or one for each prompt; drafts are made from it.

        Raises UsageError and ContextLengthError for a prompt that cannot be used, while the others are still
        running; EngineError where decoding fails.
        """
        given = prompts_or_ids(prompts, prompt_token_ids)
        return self._run(
            self._requests(given, sampling_params, n, speculate, prediction=prediction), use_tqdm
        )

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: Params | Sequence[Params] | None = None,
        *,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: str | Mapping[str, Any] = "auto",
        parallel_tool_calls: bool = True,
        use_tqdm: bool | Callable[..., Any] = False,
        n: int | None = None,
        speculate: bool = True,
        prediction: Prediction = None,
    ) -> list[RequestOutput]:
        """Answer one conversation or several, each a list of {"role": …, "content": …}; see `generate`.

        A content may be a list of texts and images: OpenAI's parts, {"type": "image", "image": a PIL image, a
        path, bytes of a file, or numpy's array}, or these themselves, paths as pathlib's. Arrays are uint8 of
        the shape (height, width), or (height, width, 3 or 4).

        tools: functions that the model may call, [{"type": "function", "function": {"name": …, "description":
        …, "parameters": a JSON schema}}]; its calls are in `tool_calls` of the outputs, and `message` is the
        answer to append to the messages before the results, {"role": "tool", "tool_call_id": …, "content":
        …}. tool_choice: "auto", "none", "required", or {"type": "function", "function": {"name": …}}.
        parallel_tool_calls: False for at most one call in an answer.

        chat_template_kwargs: further variables of the chat template (enable_thinking …). Raises
        TemplateError where it refuses the messages.
        """
        variables = template_variables(chat_template_kwargs)
        offered = history.tools(tools, tool_choice, parallel_tool_calls)
        given = conversations(messages)
        more = None, offered, prediction
        requests = self._requests(given, sampling_params, n, speculate, variables, *more)
        return self._run(requests, use_tqdm)

    def stream(
        self,
        prompt: Prompt | Sequence[Message],
        sampling_params: Params | None = None,
        *,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        speculate: bool = True,
        prediction: Prediction = None,
    ) -> Generator[Delta, None, None]:
        """Continue a prompt, or answer messages, piece by piece. Leaving the loop ends the generation."""
        variables = template_variables(chat_template_kwargs)
        (request,) = self._requests(
            [prompt_or_messages(prompt)], sampling_params, 1, speculate, variables, prediction=prediction
        )
        return self._deltas(request)

    def embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        dimensions: int | None = None,
        truncate: bool = False,
        normalize: bool = True,
    ) -> list[EmbeddingRequestOutput]:
        """The vectors of texts, with an embedding model: LLM("nomic-embed-text-v1.5"). All texts are sent at
        once, and share decodes.

        dimensions: numbers of a vector, fewer than all only for models that were trained for it. truncate:
        cut texts that are too long; otherwise they are an error. normalize: to the length 1. Raises
        UsageError, also for a model that writes texts, ContextLengthError, EngineError.
        """
        return self._embed(prompts_or_ids(prompts, None), dimensions, truncate, normalize)

    def score(
        self, query: str, documents: str | Sequence[str], *, truncate: bool = False
    ) -> list[ScoringRequestOutput]:
        """Scores of documents, in order, by a reranker: LLM("bge-reranker-v2-m3"). See `embed`."""
        given, client = [documents] if isinstance(documents, str) else list(documents), self._engine.client()
        if not isinstance(query, str) or not all(isinstance(one, str) for one in given):
            raise UsageError("score takes a query and documents, all texts")
        if not given:
            return []
        made = client.embed(protocol.Embed(client.next_id(), [*given], query, truncate=truncate))
        return [
            ScoringRequestOutput(str(next(self._numbers)), ScoringOutput(one.numbers()[0][0]), one.n_tokens)
            for one in made
        ]

    def get_tokenizer(self) -> Tokenizer:
        """The vocabulary and the chat template of the target."""
        return Tokenizer(self._engine)

    def close(self) -> None:
        """End the engine process and free its memory; requests of other threads fail."""
        self._engine.close()
        self._end.detach()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def _start(self) -> None:
        self._engine.load()

    def _run(
        self, requests: Sequence[PendingRequest], use_tqdm: bool | Callable[..., Any]
    ) -> list[RequestOutput]:
        bar = _progress_bar(use_tqdm, len(requests))
        try:
            for request, ended, _ in self._read(requests):
                if bar is not None and ended and request.finished:
                    bar.update(1)
        finally:
            if bar is not None:
                bar.close()
        return [request.output() for request in requests]

    def _deltas(self, request: PendingRequest) -> Generator[Delta, None, None]:
        with contextlib.closing(self._read([request])) as messages:
            for _, _, delta in messages:
                if delta is not None:
                    yield request.delta([delta])

    def _read(
        self, requests: Sequence[PendingRequest]
    ) -> Generator[tuple[PendingRequest, bool, protocol.SequenceDelta | None], None, None]:
        """Submit requests; yields, for each message until all texts have ended, its request, whether a text
        has ended, and its delta. Raises the engine's errors.
        """
        client, submitted = self._engine.client(), list[Submission]()
        inbox: _Inbox = queue.SimpleQueue()
        try:
            for request in requests:

                def deliver(
                    completion: PendingCompletion,
                    message: protocol.Message | SpecllamaError,
                    request: PendingRequest = request,
                ) -> None:
                    inbox.put((request, completion, message))

                try:
                    request.load_images(self._engine.image_problem)
                except SpecllamaError as error:
                    raise _named(error, requests, request) from None
                submitted += request.submit(client, deliver)
            left = len(submitted)
            while left:
                request, completion, message = inbox.get()
                if isinstance(message, SpecllamaError):
                    raise _named(message, requests, request)
                left -= (ended := isinstance(message, protocol.Done))
                yield request, ended, completion.take(message)
        finally:
            for submission in submitted:
                submission.discard()


def _progress_bar(use_tqdm: bool | Callable[..., Any], n: int) -> Any:
    """A bar for so many prompts, None for none."""
    if use_tqdm is True:
        from huggingface_hub.utils import tqdm  # type: ignore[attr-defined]

        use_tqdm = tqdm
    return use_tqdm(total=n, desc="Processed prompts") if callable(use_tqdm) else None


def _named(
    error: SpecllamaError, requests: Sequence[PendingRequest], request: PendingRequest
) -> SpecllamaError:
    """The error with the number of its prompt, where there are several and the prompt is at fault."""
    alone = len(requests) == 1 or error.http_status >= 500
    return error if alone else error.prefixed(f"prompt {requests.index(request)}: ")

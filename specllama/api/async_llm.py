"""AsyncLLM: the API for event loops. Nothing here blocks the loop; several loops may share one."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self, TypeVar

from specllama.api.base import BaseLLM, EngineSession, Tokenizer
from specllama.api.outputs import (
    Delta,
    EmbeddingRequestOutput,
    PendingCompletion,
    PendingRequest,
    RequestOutput,
)
from specllama.api.prompts import (
    Message,
    Params,
    Prompt,
    conversation,
    prompt_or_messages,
    prompts_or_ids,
    source,
)
from specllama.calls import history
from specllama.client import protocol
from specllama.client.client import EngineClient, Submission
from specllama.errors import SpecllamaError, UsageError
from specllama.text.prompt_parts import template_variables

Read = TypeVar("Read")


class AsyncInbox:
    """A request of the running event loop: `start` submits it, `take` awaits its deltas, which the client's
    thread delivers, `leave` ends it.
    """

    def __init__(self, request: PendingRequest) -> None:
        self.request = request
        self._inbox: asyncio.Queue[tuple[PendingCompletion, protocol.Message | SpecllamaError]] = (
            asyncio.Queue()
        )
        self._loop = asyncio.get_running_loop()
        self._submitted: list[Submission] = []
        self._aborted = False

    def start(self, client: EngineClient) -> None:
        if not self._aborted:
            self._submitted = self.request.submit(client, self._deliver)

    def _deliver(self, completion: PendingCompletion, message: protocol.Message | SpecllamaError) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits for the message
            self._loop.call_soon_threadsafe(self._inbox.put_nowait, (completion, message))

    async def take(self) -> list[protocol.SequenceDelta]:
        """Wait for deltas and return all that have arrived. Raises the engine's errors."""
        deltas: list[protocol.SequenceDelta] = []
        if not self._submitted:
            self.request.cancel()
        while not deltas and not self.request.finished:
            arrived = [await self._inbox.get()]
            while not self._inbox.empty():
                arrived.append(self._inbox.get_nowait())
            for completion, message in arrived:
                if isinstance(message, SpecllamaError):
                    raise message
                if (delta := completion.take(message)) is not None:
                    deltas.append(delta)
        return deltas

    def abort(self) -> None:
        """End the request; its text so far still arrives."""
        self._aborted = True
        for submission in self._submitted:
            submission.cancel()

    def leave(self) -> None:
        """Stop delivering, and end the request if it still runs."""
        for submission in self._submitted:
            submission.discard()


class AsyncLLM(BaseLLM):
    """A loaded pair of models for event loops; an asynchronous context manager that ends its engine process.

        async with AsyncLLM() as llm:
            async for output in llm.generate("def fib(n):"):
                print(output.outputs[0].text)

    Loading begins at once, in a thread; its errors are raised by `async with`, `load` and first requests.
    """

    def generate(
        self,
        prompt: Prompt,
        sampling_params: Params | None = None,
        request_id: str | None = None,
        *,
        n: int | None = None,
        speculate: bool = True,
        prediction: str | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Continue a prompt, without a chat template: outputs whose text grows, the last one `finished`.
        A reader that is slower than the engine gets fewer of them.

        Leaving the loop, closing the generator and cancelling the task end the generation. request_id: for
        `abort`. See LLM.generate for the rest.
        """
        given = source(prompt)
        how = speculate, None, request_id, None, prediction
        (request,) = self._requests([given], sampling_params, n, *how)
        return self._read(request, lambda _: request.output())

    def chat(
        self,
        messages: Sequence[Message],
        sampling_params: Params | None = None,
        request_id: str | None = None,
        *,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: str | Mapping[str, Any] = "auto",
        parallel_tool_calls: bool = True,
        n: int | None = None,
        speculate: bool = True,
        prediction: str | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Answer one conversation, as `generate`; see LLM.chat."""
        variables = template_variables(chat_template_kwargs)
        offered = history.tools(tools, tool_choice, parallel_tool_calls)
        given = conversation(messages)
        how = speculate, variables, request_id, offered, prediction
        (request,) = self._requests([given], sampling_params, n, *how)
        return self._read(request, lambda _: request.output())

    def stream(
        self,
        prompt: Prompt | Sequence[Message],
        sampling_params: Params | None = None,
        request_id: str | None = None,
        *,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        speculate: bool = True,
        prediction: str | None = None,
    ) -> AsyncGenerator[Delta, None]:
        """Continue a prompt, or answer messages, piece by piece."""
        variables = template_variables(chat_template_kwargs)
        given = prompt_or_messages(prompt)
        how = speculate, variables, request_id, None, prediction
        (request,) = self._requests([given], sampling_params, 1, *how)
        return self._read(request, request.delta)

    async def embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        dimensions: int | None = None,
        truncate: bool = False,
        normalize: bool = True,
    ) -> list[EmbeddingRequestOutput]:
        """See LLM.embed."""
        given = prompts_or_ids(prompts, None)
        await self._client()
        return await asyncio.to_thread(self._embed, given, dimensions, truncate, normalize)

    async def get_tokenizer(self) -> Tokenizer:
        """See LLM.get_tokenizer. Its methods wait for the engine: call them by asyncio.to_thread."""
        await self._client()
        return Tokenizer(self._engine)

    async def abort(self, request_id: str) -> bool:
        """End a request: its reader gets the text so far, finish_reason "cancel". False if there is none."""
        inbox = self._running.get(request_id)
        if inbox is not None:
            inbox.abort()
        return inbox is not None

    async def load(self) -> Mapping[str, Any]:
        """Wait until the models are loaded; `info`. Raises the errors of loading."""
        await self._client()
        return self.info

    async def aclose(self) -> None:
        """End the engine process and free its memory; running requests fail."""
        await asyncio.to_thread(self._engine.close)
        self._end.detach()

    async def __aenter__(self) -> Self:
        await self.load()
        return self

    async def __aexit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        await self.aclose()

    def _start(self) -> None:
        self._running: dict[str, AsyncInbox] = {}
        self._loaded: Future[None] = Future()
        arguments = (self._engine, self._loaded)  # not self, which may be garbage collected while it loads
        threading.Thread(target=_load, args=arguments, name="specllama_load", daemon=True).start()

    async def _client(self) -> EngineClient:
        await asyncio.shield(asyncio.wrap_future(self._loaded))
        return self._engine.client()

    async def _read(
        self, request: PendingRequest, made: Callable[[list[protocol.SequenceDelta]], Read]
    ) -> AsyncGenerator[Read, None]:
        """Submit a request, and yield what is made of the deltas that arrive together."""
        inbox = AsyncInbox(request)
        if self._running.setdefault(request.request_id, inbox) is not inbox:
            message = f"there is a request {request.request_id!r} already"
            raise UsageError(message, "give each its own request_id")
        try:
            client = await self._client()
            if request.source.images:
                await asyncio.to_thread(request.load_images, self._engine.image_problem)
            inbox.start(client)
            while not request.finished:
                yield made(await inbox.take())
        finally:
            del self._running[request.request_id]
            inbox.leave()


def _load(engine: EngineSession, loaded: Future[None]) -> None:
    try:
        engine.load()
    except BaseException as error:  # noqa: BLE001 - raised by whatever waits for loading
        loaded.set_exception(error)
    else:
        loaded.set_result(None)

"""From a request's message to generations in the engine, and from a query to its answer.

Large ones are prepared in another thread, so that the decoding goes on meanwhile.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import queue
import secrets
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from specllama.calls.schema import answer_schema, with_closed_schemas
from specllama.client import protocol
from specllama.clock import running_time
from specllama.core.decoder import context_length_error
from specllama.core.engine import Engine
from specllama.core.interfaces import Mask
from specllama.core.prefix.stored import CachedSequence
from specllama.core.sampling.dry import Breakers
from specllama.core.sampling.infill import InfillRule
from specllama.core.sampling.params import SamplingParams
from specllama.core.sequence import Generation, Request, TokenLogprobs
from specllama.core.stats import RunStats
from specllama.errors import BusyError, ContextLengthError, EngineError, SpecllamaError, UsageError
from specllama.llama.model import LlamaModel, end_of_turn_id
from specllama.prefix_disk.memory_store import MemoryStore
from specllama.processor_time import WorkMeter, of_thread
from specllama.text.detokenizer import TokenWriter
from specllama.text.reasoning import closing_tag
from specllama.text.reasoning_budget import ReasoningBudget, ReasoningForm
from specllama.text.terminal import printable
from specllama.worker.conversations import detokenize, token_bytes
from specllama.worker.load_info import sampling_defaults
from specllama.worker.loader import Loaded
from specllama.worker.prefix_persister import PrefixPersister
from specllama.worker.prompts import Prompt, Prompts, answer_query

_COPIED = "speculate", "draft_max", "owner", "final_probs", "exact", "warm", "end_loops"  # into the Request


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request that was checked, and what is made of its texts. params: with a seed. received: running_time.
    tag: that closes the reasoning which the prompt opens, "" for none; grammar: Lark of its tool calls, None
    without; schema: of the text, as its grammar uses it, None without; notes: what these do not enforce.
    reasoning: None where it has no end but the model's own. breakers: of the sampling step `dry`.
    """

    message: protocol.Generate
    params: SamplingParams
    received: float
    prompt: Prompt
    tag: str
    grammar: str | None
    schema: str | None
    notes: Sequence[str]
    reasoning: ReasoningForm | None = None
    breakers: Breakers = field(default_factory=dict)


def _breaking(params: SamplingParams) -> Sequence[str]:
    used = params.dry_multiplier and params.dry_penalty_last_n and "dry" in params.samplers
    return params.dry_sequence_breakers if used and not params.mirostat else ()


@contextlib.contextmanager
def blaming(param: str) -> Iterator[None]:
    """Errors raised inside that name no parameter name this one."""
    try:
        yield
    except UsageError as error:
        error.details.setdefault("param", param)
        raise


def cache_scope(message: protocol.Generate) -> str:
    """Those whose caches a request may reuse."""
    if not message.reuse:
        return f"\0{message.id}"  # no owner's
    return "" if message.share_cache else message.owner


def limited(seconds: float | None, message: protocol.Generate) -> float:
    return math.inf if seconds is None or message.warm else seconds


def choice_ids(message: protocol.Message) -> list[int]:
    return [choice.id for choice in message.choices] if isinstance(message, protocol.Generate) else []


def refuse(send: protocol.Send, error: SpecllamaError, *ids: int | None) -> None:
    for id_ in ids:
        send(protocol.Failed(error.to_dict(), id_))


@contextlib.contextmanager
def refusing(send: protocol.Send, message: protocol.Message) -> Iterator[None]:
    """Send the errors within to those who wait for an answer to a message."""
    try:
        yield
    except SpecllamaError as error:
        refuse(send, error, getattr(message, "id", None), *choice_ids(message))


# The output of one generation since the last message to the front.


MAX_REJECTED = 32  # draft tokens of a round that are shown


@dataclass(slots=True)
class SequenceOutput:
    """A generation, and how much of it was sent.

    message: that asked for it. n_sent, n_drafted, n_accept, n_rounds, decode_seconds: totals at the last
    message. n_prefilled: as last reported, -1 before. queue_position: as last reported, 0 before.
    """

    id: int
    generation: Generation
    writer: TokenWriter
    message: protocol.Generate
    n_sent: int = 0
    n_drafted: int = 0
    n_accept: int = 0
    n_rounds: int = 0
    decode_seconds: float = 0.0
    n_prefilled: int = -1
    queue_position: int = 0

    def queue_report(self, waiting: Sequence[Generation]) -> protocol.Queued | None:
        """Its position among those that wait for a slot, where that was not reported before."""
        if not self.message.progress:
            return None
        position = 1 + next((i for i, g in enumerate(waiting) if g is self.generation), -1)
        if position in (0, self.queue_position):
            return None
        self.queue_position = position
        return protocol.Queued(self.id, self.generation.n_prompt, position)

    def prefill_reports(self) -> list[protocol.Prefilled]:
        """The progress of the prefill since the last report, first the part that was cached."""
        g = self.generation
        waits = g.seq_id < 0 or g.prefix_owner is not None
        if not self.message.progress or waits or self.n_prefilled == g.n_prompt:
            return []
        n_reused, n_done = g.stats.n_reused, min(g.n_past, g.n_prompt)
        steps = [n_reused] if self.n_prefilled < 0 else []
        if n_done > max(self.n_prefilled, n_reused):
            steps.append(n_done)
        self.n_prefilled = max([self.n_prefilled, *steps])
        return [protocol.Prefilled(self.id, n, g.n_prompt, n_reused) for n in steps]

    def delta(self, model: LlamaModel) -> protocol.SequenceDelta | None:
        """The output since the last call; None if there is none."""
        g = self.generation
        text, runs = self.writer.take()
        ids = g.history[g.n_prompt + self.n_sent :]
        if not ids:
            return None
        logprobs = self._logprobs(model, ids) if g.logprobs else None
        stats = g.stats
        drafted, accepted = stats.n_drafted - self.n_drafted, stats.n_accept - self.n_accept
        rounds, seconds = stats.rounds - self.n_rounds, stats.decode_seconds - self.decode_seconds
        self.n_sent += len(ids)
        self.n_drafted, self.n_accept, self.n_rounds = stats.n_drafted, stats.n_accept, stats.rounds
        self.decode_seconds = stats.decode_seconds
        shown = g.rejected[:MAX_REJECTED] if self.message.show_rejected else ()
        rejected = [(token_bytes(model, i).decode("utf-8", "replace"), source) for i, source in shown]
        return protocol.SequenceDelta(
            self.id, text, ids, runs, drafted, accepted, logprobs, rounds, seconds, rejected
        )

    def _logprobs(self, model: LlamaModel, ids: Sequence[int]) -> list[protocol.PositionLogprobs] | None:
        """Of the ids that were not sent yet."""
        lengths = itertools.chain(
            self.writer.lengths[self.n_sent :], itertools.repeat(0)
        )  # an end token has none
        positions = zip(ids, self.generation.logprobs[self.n_sent :], lengths, strict=False)
        return [_logprobs(model, token, logprob, n) for token, logprob, n in positions] or None


def _logprobs(
    model: LlamaModel, token: int, position: TokenLogprobs, length: int
) -> protocol.PositionLogprobs:
    top = [_candidate(model, i, logprob) for i, logprob in position.top]
    return protocol.PositionLogprobs(_candidate(model, token, position.logprob), top, length)


def _candidate(model: LlamaModel, token: int, logprob: float) -> protocol.CandidateLogprob:
    piece = token_bytes(model, token)
    value = logprob if logprob > -math.inf else None
    return protocol.CandidateLogprob(token, piece.decode("utf-8", "replace"), list(piece), value)


# Prepares large requests in a thread of its own while others decode, the smallest first.
#
# Rendering and tokenising megabytes takes seconds; in the thread that decodes, all other requests would wait.


_Result = TypeVar("_Result")
LARGE = 16 * 1024  # bytes of a message; the work on smaller ones takes a few milliseconds
_ALLOWED_SECONDS, _ALLOWED_PER_BYTE = 30.0, 200e-6  # far beyond the slowest tokeniser


@dataclass(slots=True)
class Job:
    """The work on one message. open: its ids that nobody has cancelled; without any it is not begun."""

    open: set[int]
    work: Callable[[], object]
    done: Callable[[Job, Any], None]


class Preparer:
    """Runs jobs in a thread that starts with the first one. held: bytes of the jobs that wait or run."""

    def __init__(self) -> None:
        self.held = 0
        self._jobs: queue.PriorityQueue[tuple[int, int, Job]] = queue.PriorityQueue()
        self._numbers = itertools.count()
        self._by_id: dict[int, Job] = {}
        self._current: tuple[WorkMeter, int] | None = None  # of the job at hand, and its size
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    @property
    def busy(self) -> bool:
        """Whether there are jobs that have not been released."""
        return bool(self._by_id)

    def submit(
        self,
        ids: set[int],
        size: int,
        work: Callable[[], _Result],
        done: Callable[[Job, _Result | SpecllamaError], None],
    ) -> None:
        """Queue a job. size: bytes of its message; of two that wait, the smaller one runs first.

        done: called in the thread with the result of `work`, or its error; it has the job released.
        """
        job = Job(ids, work, done)
        self._by_id.update(dict.fromkeys(ids, job))
        with self._lock:
            self.held += size
        self._jobs.put((size, next(self._numbers), job))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="specllama-prepare", daemon=True)
            self._thread.start()

    def cancel(self, id_: int) -> bool:
        """Remove an id from its job, if it has one. Returns whether it had."""
        job = self._by_id.pop(id_, None)
        if job is not None:
            job.open.discard(id_)
        return job is not None

    def release(self, job: Job) -> None:
        for id_ in list(job.open):
            self._by_id.pop(id_, None)

    @property
    def hang(self) -> tuple[float, float] | None:
        """Seconds that the job at hand has run (WorkMeter.seconds), and that it may; None without one."""
        current = self._current
        if current is None:
            return None
        meter, size = current
        return meter.seconds, _ALLOWED_SECONDS + _ALLOWED_PER_BYTE * size

    def _run(self) -> None:
        while True:
            size, _, job = self._jobs.get()
            self._current = WorkMeter(of_thread(threading.current_thread())), size
            if job.open:
                job.done(job, _outcome(job.work))
            self._current = None
            with self._lock:
                self.held -= size
            del job  # what it holds is freed before the next one arrives


def attempt(work: Callable[[], _Result]) -> _Result:
    """The result of `work`; whatever it raises is an error of one request. Raises SpecllamaError."""
    try:
        return work()
    except SpecllamaError:
        raise
    except Exception as error:
        traceback.print_exc()
        raise EngineError(f"{type(error).__name__} in the engine process: {error}") from error


def _outcome(work: Callable[[], object]) -> object:
    """The result of `work`, or the error that it raises: the thread must go on."""
    try:
        return attempt(work)
    except SpecllamaError as error:
        return error


_MAX_NAMED = 10  # ids in a line
_TAIL = 32  # tokens at the end of a prompt that are searched for an opening tag
_PART_BYTES = 128  # that each part of a prompt counts for, since it is tokenised by itself
_MAX_HELD = 64 * 1024 * 1024  # bytes of large messages; while there are more, no large query is accepted


class RequestIntake:
    """Accepts requests for a loaded pair.

    running: gets the generations. send: sends a message to the front, in any thread. post: makes the engine's
    thread call a function; None: large requests are prepared in that thread too. persister: prompts on disk.
    """

    def __init__(
        self,
        loaded: Loaded,
        engine: Engine,
        prompts: Prompts,
        running: list[SequenceOutput],
        send: protocol.Send,
        post: Callable[[Callable[[], None]], None] | None,
        persister: PrefixPersister | None = None,
        memory: MemoryStore | None = None,
    ) -> None:
        self.prompts, self.persister, self._memory = prompts, persister, memory
        self._loaded, self._engine, self._running = loaded, engine, running
        self._send, self._post = send, post
        self._preparer, self._reader = Preparer(), Preparer()
        self._said: dict[str, str] = {}  # the latest notes, by field

    @functools.cached_property
    def _infill_rule(self) -> InfillRule:
        model = self._loaded.model
        return InfillRule(model.end_ids, end_of_turn_id(model), model.piece)

    @property
    def busy(self) -> bool:
        """Whether something is being prepared, or read from the disk."""
        return self._preparer.busy or self._reader.busy

    @property
    def hang(self) -> tuple[float, float] | None:
        return self._preparer.hang or self._reader.hang

    def cancel(self, id_: int) -> None:
        """End a request that is being prepared, or waits for the disk; without effect on others."""
        if self._preparer.cancel(id_) or self._reader.cancel(id_):
            self._send(protocol.Done(id_, "", "cancel", RunStats()))

    def generate(self, message: protocol.Generate, size: int) -> None:
        """size: bytes of the message. Raises UsageError, TemplateError, ContextLengthError, or sends them."""
        received = running_time()
        if message.chat is not None:
            message = replace(message, prompt=self.prompts.calls.apart(message.chat))
        if isinstance(message.prompt, protocol.MixedInput):
            size += _PART_BYTES * len(message.prompt.parts)
        params = attempt(lambda: self._params(message))
        ids = {message.id, *choice_ids(message)}
        known = self._loaded.model.knows_breakers(_breaking(params))
        if self._post is None or (size <= LARGE and known):
            self._queue(attempt(lambda: self._prepare(message, params, received)), ids)
            return
        self.prompts.check(message)
        work = partial(self._prepare, message, params, received)
        self._in_thread(self._preparer, self._post, ids, size, work, self._queue)

    def _in_thread(
        self,
        thread: Preparer,
        post: Callable[[Callable[[], None]], None],
        ids: set[int],
        size: int,
        work: Callable[[], _Result],
        then: Callable[[_Result, set[int]], None],
    ) -> None:
        """Do the work on some ids in another thread, what follows in the engine's. then: gets the result and
        the ids that were not cancelled meanwhile; errors of both are sent to these.
        """

        def done(job: Job, result: _Result | SpecllamaError) -> None:
            thread.release(job)
            try:
                if isinstance(result, SpecllamaError):
                    raise result
                then(result, job.open)
            except SpecllamaError as error:
                refuse(self._send, error, *job.open)

        thread.submit(ids, size, work, lambda job, result: post(partial(done, job, result)))

    def _params(self, message: protocol.Generate) -> SamplingParams:
        """The parameters of a request, with a seed. Raises UsageError."""
        params = SamplingParams.merge(message.params, sampling_defaults(self._loaded.model.metadata))
        seed = params.seed if params.seed is not None else secrets.randbits(32)
        biases = self._biases(params, message.text_biases)
        n_vocab = self._loaded.model.n_vocab
        for name, given, what in (
            ("stop_token_ids", params.stop_token_ids, "cannot end a text"),
            ("logit_bias", params.logit_bias, "have no bias"),
        ):
            if foreign := [str(i) for i in given if i >= n_vocab]:
                ids = ", ".join(foreign[:_MAX_NAMED] + ["…"] * (len(foreign) > _MAX_NAMED))
                note = f"{name}: this model has ids from 0 to {n_vocab - 1}: {ids} {what}"
                if note != self._said.get(name):  # not once for each of many texts
                    self._said[name] = note
                    self._send(protocol.Notice(note))
        return replace(params, seed=seed, logit_bias=biases)

    def _biases(self, params: SamplingParams, of_texts: Mapping[str, float]) -> Mapping[int, float]:
        """The biases of all tokens of the vocabulary; those of ids count before those of texts."""
        model = self._loaded.model
        own = {i: bias for i, bias in params.logit_bias.items() if i < model.n_vocab}
        biases = {i: bias for text, bias in of_texts.items() for i in model.tokenize(text, False, False)}
        return biases | own

    def _prepare(self, message: protocol.Generate, params: SamplingParams, received: float) -> Prepared:
        """A request with its prompt and grammar, in any thread; that of a thousand tools takes 0.2 s to
        compile. Raises UsageError, TemplateError, ContextLengthError.
        """
        model, given = self._loaded.model, params
        prompt = self.prompts.prompt(message)
        chat, calls = message.chat, self.prompts.calls
        tools = chat.tools if chat is not None else None
        is_begun = chat is not None and chat.is_begun
        # Reasoning that goes on; that in channels is complete in the prompt, and the answer follows.
        goes_on = chat is not None and is_begun and not chat.prefix and calls.thought_tag != ""
        end = detokenize(model, prompt.ids[-_TAIL:])
        tag = calls.thought_tag if goes_on else closing_tag(end)
        begun = not tag and (is_begun or calls.reasoning_is_over(end))
        is_open, notes = self._loaded.settings.schema_open, list[str]()
        if isinstance(params.json_schema, str):
            used, problem = answer_schema(params.json_schema, message.strict_schema, is_open)
            params = replace(params, json_schema=used)
            notes.append(calls.note_answer(used, problem))
        if tools is not None:
            tools = tools if is_open else with_closed_schemas(tools)
            notes.append(calls.note(tools))
        grammar = calls.grammar(tools, params, tag, begun) if chat is not None else None
        schema = params.json_schema if isinstance(params.json_schema, str) else None
        form = None
        if chat is not None:
            given = replace(given, reasoning_budget=calls.budget(given, chat.variables))
        if given.reasoning_budget >= 0 or message.reasoning_control:
            notes.append(calls.note_budget() if not tag and given.reasoning_budget >= 0 else "")
            free = given.grammar is None and prompt.forced is None  # a grammar has its own end of reasoning
            if free and (tag or (chat is not None and (goes_on or not begun))):
                form = calls.reasoning_form(tools is not None, tag, goes_on, end)
        notes = [note for note in notes if note]
        breakers = model.breakers(_breaking(params))
        made = Prepared(message, given, received, prompt, tag, grammar, schema, notes, form, breakers)
        self._mask(made)
        return made

    def _mask(self, made: Prepared) -> Mask | None:
        """A mask at the beginning of an answer; its grammar is compiled the first time."""
        grammar, scope, compiled = made.params.grammar, cache_scope(made.message), self._loaded.grammars
        if made.schema is not None and made.grammar is not None:
            with blaming("json_schema"):
                compiled.mask(json_schema=made.schema, scope=scope)
        chat = made.message.chat
        blamed = "tools" if chat is not None and chat.tools is not None else "json_schema"
        with blaming("grammar" if grammar is not None else blamed):
            mask = compiled.mask(json_schema=made.schema, grammar=grammar, tools=made.grammar, scope=scope)
        if made.reasoning is None:
            return mask
        model, budget = self._loaded.model, made.params.reasoning_budget
        return ReasoningBudget(
            made.reasoning,
            budget if budget >= 0 else math.inf,
            model.n_vocab,
            partial(token_bytes, model),
            lambda text, special: model.tokenize(text, False, special),
            made.params.reasoning_budget_message,
            mask,
        )

    def _queue(self, made: Prepared, ids: set[int]) -> None:
        """Submit the answers with these ids, with what the disk has of the prompt if it can be read."""
        persister, message = self.persister, made.message
        alone = self._engine.exact_rows is not None and (self._engine.exact or message.exact)
        match = None
        if persister is not None and not alone:  # whose cells must be those that it would fill itself
            match = persister.find(made.prompt.ids, cache_scope(message), message.disk_scope)
        if persister is None or match is None:
            self._submit(made, ids)
        elif self._post is None:
            self._submit(made, ids, persister.read(match))
        else:
            reading, size = partial(persister.read, match), match.state.meta.n_bytes

            def read() -> CachedSequence | None:
                with contextlib.suppress(SpecllamaError):
                    return attempt(reading)
                return None

            submit = partial(self._submit, made)
            self._in_thread(self._reader, self._post, ids, size, read, lambda text, ids: submit(ids, text))

    def _submit(self, made: Prepared, ids: set[int], stored: CachedSequence | None = None) -> None:
        """Submit the answers of a request to the engine. stored: a text that was read from the disk."""
        if stored is not None and self.persister is not None:
            self.persister.note(stored.scope, stored.ids)
        message, model, prompt = made.message, self._loaded.model, made.prompt
        n_prompt, n_ctx = len(prompt.ids), self._engine.target.n_ctx
        if n_prompt >= n_ctx:
            error = context_length_error(n_prompt, n_ctx, n_ctx_train=model.n_ctx_train)
            if not prompt.images:
                raise error
            n = sum(image.end - image.begin for image in prompt.images)
            hint = f"{error.hint}, or smaller images: they have {n} of the tokens"
            raise ContextLengthError(error.message, hint, error.details)
        if self._memory is not None:
            self._memory.note_scope(message.owner, message.disk_scope)
        for note in made.notes:
            self._send(protocol.Notice(printable(note)))
        chat, calls = message.chat, self.prompts.calls
        shown = calls.shown(chat.tools) if chat is not None else {}
        if not made.params.skip_special_tokens:
            shown = {**model.control_tokens, **shown}
        headers = calls.headers if chat is not None else None
        assert made.params.seed is not None
        first = protocol.Choice(message.id, message.turn, made.params.seed)
        for choice in (choice for choice in (first, *message.choices) if choice.id in ids):
            params = replace(made.params, seed=choice.seed)
            stops = params.stop if prompt.forced is None else ()
            ends = params.stop_token_ids, params.min_tokens
            controls = model.control_tokens if stops else {}
            writer = TokenWriter(model.piece, stops, shown, message.n_indent, headers, *ends, controls)
            request = Request(
                prompt.ids,
                params,
                choice.seed,
                writer,
                mask=self._mask(made),
                forced=prompt.forced,
                history_scope=message.owner if message.memory else None,
                cache_scope=cache_scope(message),
                turn=choice.turn,
                prompt_seconds=limited(message.prompt_seconds, message),
                predict_seconds=limited(message.predict_seconds, message),
                infill=self._infill_rule if params.infill_sampling else None,
                breakers=made.breakers,
                boundaries=prompt.boundaries,
                kept=message.kept and bool(message.disk_scope),
                prediction=prompt.prediction,
                images=prompt.images,
                **{name: getattr(message, name) for name in _COPIED},
            )
            generation = self._engine.submit(request, stored)
            generation.stats.n_from_disk = len(stored.ids) if stored is not None else 0
            # Template, tokenisation and grammar count towards the first token.
            generation.submitted = made.received
            self._running.append(SequenceOutput(choice.id, generation, writer, message))
            shown_ids = (prompt.ids, prompt.digest) if message.show_ids else ([], "")
            self._send(protocol.Started(choice.id, len(prompt.ids), params, made.tag, *shown_ids))

    def answer(self, question: protocol.Question, size: int) -> None:
        """Answer a query about texts. Raises as `generate`, BusyError for a large one while too many wait."""

        def answer() -> None:
            for part in answer_query(question, self._loaded.model, self.prompts):
                self._send(part)

        if self._post is None or size <= LARGE:
            attempt(answer)
        elif self._preparer.held + size > _MAX_HELD:
            raise BusyError("too many large texts wait to be tokenised", "ask again later")
        else:
            self._in_thread(
                self._preparer, lambda done: done(), {question.id}, size, answer, lambda _, __: None
            )

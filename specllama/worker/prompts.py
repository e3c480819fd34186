"""From the texts of requests to token ids: template, conversation and tokeniser, within the context.

Used by the thread that decodes for small requests, by the preparer's thread for large ones.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specllama.calls.history import Message
from specllama.client import protocol
from specllama.client.protocol import Infill, InfillChunk
from specllama.clock import running_time
from specllama.core.decoder import context_length_error
from specllama.core.image_rows import ImageRows
from specllama.core.prefix.stored import GAP, Boundary, Kind, distances
from specllama.errors import ContextLengthError, NotSupportedError, SpecllamaError, UsageError, option, quoted
from specllama.llama.model import FimTokens, LlamaModel, fim_tokens
from specllama.text.prompt_parts import PromptPart, encode
from specllama.text.template_process import IsolatedTemplate, TemplateProcess
from specllama.worker.conversations import (
    ConversationCache,
    TextLimit,
    detokenize,
    prompt_digest,
    token_bytes,
)
from specllama.worker.images import ImageEncoder, PromptImages, shown
from specllama.worker.loader import Loaded
from specllama.worker.tool_calls import ToolCalls

# The positions up to which later prompts may share a chat's prompt, found by rendering other conversations.
#
# What a template writes of a message depends on those after it (some strip the reasoning of earlier answers),
# so the prompt is compared with that of a conversation that differs: in a message, or in what follows the
# last one. Their common beginning ends at such a position.


_MAX_SECONDS, _SECONDS_AN_ID = 0.1, 1e-4  # of rendering other conversations, and more for long prompts
_END = 4  # ids before the end, for the same prompt again
_MAX_USERS = 4  # user messages whose starts are looked for
_SYSTEM = ("system", "developer")
_OTHER = ("#", "@")  # texts of messages that differ from any other in their first character

Messages = Sequence[Mapping[str, Any]]


def chat_boundaries(
    messages: Messages,
    parts: Sequence[PromptPart],
    ids: Sequence[int],
    render: Callable[[Messages], list[PromptPart]],
    encode: Callable[[Sequence[PromptPart]], list[int]],
) -> list[Boundary]:
    """The boundaries in a chat's prompt in order, without those that are not between two tokens. A
    conversation that the template refuses gives none; so do those that there was no time for. parts, ids: of
    the prompt, whose ids end with those of the parts. encode: parts in the middle of a prompt.
    """
    text = "".join(part.text for part in parts)
    kinds: dict[int, Kind] = {}
    ends = running_time() + _MAX_SECONDS + _SECONDS_AN_ID * len(ids)
    for kind, other in _others(messages, len(ids)):
        if running_time() > ends:
            break
        try:
            changed = "".join(part.text for part in render(other))
        except SpecllamaError:
            continue
        n = _n_ids(parts, ids, encode, _n_common(text, changed))
        if 0 < n < len(ids):
            kinds.setdefault(n, kind)
    kinds.setdefault(len(ids) - _END, "end")
    return [Boundary(n, kind) for n, kind in sorted(kinds.items())]


def _others(messages: Messages, n_ids: int) -> Iterator[tuple[Kind, Messages]]:
    """Conversations that differ from this one, the most likely first."""
    if not messages:
        return
    answer = {"role": "assistant", "content": _OTHER[0]}
    yield "reasoning", [*messages, answer, {"role": "user", "content": _OTHER[0]}]
    if messages[-1].get("role") != "user":
        yield "reasoning", [*messages, answer]
    yield "reasoning", [*messages, {**answer, "reasoning_content": _OTHER[0]}]
    first = next((i for i, m in enumerate(messages) if m.get("role") not in _SYSTEM), 0)
    yield "system", [*messages[:first], _changed(messages[first])]
    users = [i for i, m in enumerate(messages) if m.get("role") == "user" and i > first]
    while users:
        yield "user", [*messages[: users[-1]], _changed(messages[users[-1]])]
        if n_ids < GAP * _MAX_USERS:
            return
        users = users[: (len(users) - 1) * (_MAX_USERS - 1) // _MAX_USERS]


def _changed(message: Mapping[str, Any]) -> Message:
    """A message of this role with another text from its first character on."""
    content = message.get("content")
    if isinstance(content, list):
        content = next((part.get("text") for part in content if isinstance(part, dict)), "")
    same = isinstance(content, str) and content.lstrip().startswith(_OTHER[0])
    return {"role": message.get("role", "user"), "content": _OTHER[same]}


def _n_common(a: str, b: str) -> int:
    """Length of the common beginning of two texts, by bisection: comparing slices is fast."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if a[low:middle] == b[low:middle] else (low, middle - 1)
    return low


def _n_ids(
    parts: Sequence[PromptPart],
    ids: Sequence[int],
    encode: Callable[[Sequence[PromptPart]], list[int]],
    n_chars: int,
) -> int:
    """How many ids the first characters of the text are; 0 where a token goes across."""
    before, after = _split(parts, n_chars)
    rest = encode(after)
    n = len(ids) - len(rest)
    if n > 0 and list(ids[n:]) == rest:
        return n
    start = encode(before)  # without BOS, which may come before it
    for n_bos in (0, 1):
        if start and list(ids[n_bos : n_bos + len(start)]) == start:
            return n_bos + len(start)
    return 0


def _split(parts: Sequence[PromptPart], n_chars: int) -> tuple[list[PromptPart], list[PromptPart]]:
    before, after = list[PromptPart](), list[PromptPart]()
    for part in parts:
        n = max(0, min(len(part.text), n_chars))
        n_chars -= n
        if n:
            before.append(PromptPart(part.text[:n], part.parse_special))
        if n < len(part.text):
            after.append(PromptPart(part.text[n:], part.parse_special))
    return before, after


# The prompt that asks a model to fill a gap, in the layout of llama-server's /infill: the repository's name
# and other texts, then the text before and after the gap, each cut to what one decode may hold.
#
# Texts are cut before they are tokenised.


_REPOSITORY, _FILE = "myproject\n", "filename\n"  # llama-server's names where the request has none
_BETWEEN = "\n\n--- snippet ---\n\n"  # before another text, where the vocabulary has no token for that
_KEPT_FOR_TEXT, _KEPT_SHARE = 512, 8  # tokens of the context, or 1/8 of it, that other texts leave free
_ANCHOR_SHARE, _ANCHOR_TOKENS = 8, 8  # of the tokens before the gap the first 1/8 may be left out; see _start


def infill_ids(model: LlamaModel, infill: Infill, n_ctx: int, n_batch: int) -> list[int]:
    """The ids of a prompt. n_batch: most tokens of prefix and suffix together.

    Without `extra`, prefix and suffix are used whole. Raises NotSupportedError where the vocabulary has no
    tokens for it, UsageError for texts that cannot be tokenised.
    """
    fim = fim_tokens(model)
    if fim.missing:
        raise NotSupportedError(
            f"the model cannot fill in the middle: its vocabulary has no token for {', '.join(fim.missing)}",
            "use a model for code that was trained to",
        )
    prompt = model.tokenize(infill.prompt, False, False)
    if infill.extra is None:
        prefix = model.tokenize(infill.prefix, False, False)
        suffix = model.tokenize(infill.suffix, False, False)
        return _joined(model, fim, [], [*prefix, *prompt], suffix, infill.suffix_first)
    kept = min(_KEPT_FOR_TEXT, n_ctx // _KEPT_SHARE)
    n_batch = min(n_batch, n_ctx - kept - 4)
    n_prefix, n_suffix = 3 * (n_batch // 4), max(0, n_batch // 4 - (2 + len(prompt)))
    longest = model.longest_token
    prefix = model.tokenize(infill.prefix[-(n_prefix + 1) * longest :], False, False)
    prefix = prefix[_start(model, prefix, n_prefix) :]
    suffix = model.tokenize(infill.suffix[: n_suffix * longest], False, False)[:n_suffix]
    extra = _extra_ids(model, fim, infill.extra, n_ctx - n_batch - kept - 4)
    return _joined(model, fim, extra, [*prefix, *prompt], suffix, infill.suffix_first)


def infill_boundaries(model: LlamaModel, ids: Sequence[int]) -> list[Boundary]:
    """The positions up to which later prompts may share such a prompt: the end of the other texts, and that
    of the text before the gap, which grows there; and those at growing distances from the end.
    """
    fim, n = fim_tokens(model), len(ids)
    starts = sorted(n - 1 - ids[::-1].index(i) for i in (fim.prefix, fim.suffix) if i in ids)
    kinds: tuple[Kind, Kind] = ("system", "user")
    boundaries = [Boundary(at, kind) for at, kind in zip(starts, kinds, strict=False) if at]
    return [*boundaries, *(boundary for boundary in distances(n) if boundary.n not in starts)]


def _joined(
    model: LlamaModel,
    fim: FimTokens,
    extra: list[int],
    prefix: list[int],
    suffix: list[int],
    suffix_first: bool,
) -> list[int]:
    """All parts in order. prefix: with the beginning of what fills the gap."""
    parts = [[fim.prefix, *prefix], [fim.suffix, *suffix]]
    first, second = reversed(parts) if suffix_first else parts
    bos = [model.bos_id] if model.adds_bos and model.bos_id >= 0 else []
    return [*extra, *bos, *first, *second, fim.middle]


def _start(model: LlamaModel, ids: Sequence[int], n: int) -> int:
    """Where the last n ids begin, or a little later: at the line, of those in the first part of them, whose
    first tokens have the lowest checksum.

    If the gap moves on by a line, that line is most often the same one, so that what was evaluated before it
    is reused; the last n ids themselves would begin at another token with every character (winnowing:
    Schleimer, Wilkerson, Aiken, SIGMOD 2003).
    """
    start = len(ids) - n
    if start <= 0:
        return 0
    lines = [i for i in range(start, start + n // _ANCHOR_SHARE) if model.piece(ids[i - 1]).endswith(b"\n")]
    return min(lines, key=lambda i: (_checksum(ids[i : i + _ANCHOR_TOKENS]), i), default=start)


def _checksum(ids: Sequence[int]) -> int:
    return zlib.crc32(b"".join(i.to_bytes(4, "little") for i in ids))


def _extra_ids(model: LlamaModel, fim: FimTokens, chunks: Sequence[InfillChunk], n: int) -> list[int]:
    """The last n ids of the repository's name, the other texts, and the file's name."""
    if n <= 0:
        return []
    parts = [[fim.separator, *model.tokenize(_FILE, False, False)]] if fim.separator >= 0 else []
    size = sum(map(len, parts))
    for chunk in reversed(chunks):
        if size >= n:
            break
        text = model.tokenize(chunk.text[-n * model.longest_token :], False, False)
        parts += [text, _heading(model, fim, chunk)]
        size += len(text) + len(parts[-1])
    if fim.repository >= 0:
        parts.append([fim.repository, *model.tokenize(_REPOSITORY, False, False)])
    return [i for part in reversed(parts) for i in part][-n:]


def _heading(model: LlamaModel, fim: FimTokens, chunk: InfillChunk) -> list[int]:
    if fim.separator < 0:
        return model.tokenize(_BETWEEN, False, False)
    return [fim.separator, *model.tokenize(f"{chunk.filename}\n", False, False)]


@dataclass(frozen=True, slots=True)
class Prompt:
    """The ids of a prompt, and of the forced output, None where the model writes freely. boundaries: up
    to which later prompts may share it, () where they are not known or not needed. digest: as in
    protocol.Started. prediction: ids of the text that the output is expected to be, () for none.
    images: among the ids, in order.
    """

    ids: list[int]
    forced: list[int] | None
    boundaries: Sequence[Boundary] = ()
    digest: str = ""
    prediction: Sequence[int] = ()
    images: Sequence[ImageRows] = ()


class Prompts:
    """Makes prompts for one loaded model. process: for its template, see `compile_template`. problem: why the
    template cannot be used, None if it can or there is none. calls: how the model is shown tools. encoder: of
    images, None for a model that sees none. Raises UsageError for an unknown format of tool calls.
    """

    def __init__(self, loaded: Loaded, process: TemplateProcess, encoder: ImageEncoder | None = None) -> None:
        model, context, settings = loaded.model, loaded.context, loaded.settings
        self._model, self._n_ctx, self._n_batch = model, context.n_ctx, context.n_batch
        self._with_boundaries, self._encoder = not context.cuts_anywhere, encoder
        self._template, self.problem = compile_template(loaded, process)
        source = settings.chat_template or loaded.header.chat_template or ""
        usable = self._template if self.problem is None else None
        self.calls = ToolCalls(model, source, usable, settings.tool_format)
        self.works = usable is not None
        self.limit, self.turns = TextLimit(model, context.n_ctx), ConversationCache()

    @property
    def template(self) -> IsolatedTemplate:
        """The usable template. Raises UsageError, TemplateError without one."""
        if self._template is None:
            hint = f"use {option('raw')}, or give one with {option('chat_template')}"
            raise self.problem or UsageError("the model has no chat template", hint)
        return self._template

    def check(self, message: protocol.Generate) -> None:
        """Raises ContextLengthError for a prompt that cannot fit, without tokenising it."""
        match message.prompt:
            case protocol.TextInput(text):
                self.limit.check(text, parse_special=True)
            case protocol.MixedInput(parts):
                if (n := sum(len(part) for part in parts if not isinstance(part, str))) >= self._n_ctx:
                    raise context_length_error(n, self._n_ctx, n_ctx_train=self._model.n_ctx_train)
                texts = [part for part in parts if isinstance(part, str)]
                self.limit.check_bytes(texts)
                for text in texts:
                    self.limit.check(text, parse_special=True)
            case protocol.Infill() as gap:
                whole = [gap.prefix, gap.suffix, gap.prompt]
                self.limit.check_bytes([gap.prompt] if gap.extra is not None else whole)
            case protocol.ChatInput() as chat:
                self.limit.check_messages(chat.messages)
                self.limit.check_tools(chat.tools)
        if isinstance(message.forced, str):
            self.limit.check(message.forced, parse_special=False)
        with _naming_prediction():
            self.limit.check(message.prediction, parse_special=False)

    def prompt(self, message: protocol.Generate) -> Prompt:
        """The ids for a request. Raises UsageError, TemplateError, ContextLengthError."""
        self.check(message)
        forced = message.forced
        if isinstance(forced, str):  # tokenised on its own, without control tokens
            forced = self._model.tokenize(forced, False, False)
        images = self._images(message.prompt)
        ids = self._ids(message.prompt, images)
        if not ids:
            raise UsageError("the prompt is empty", "give some text")
        boundaries = self._boundaries(message.prompt, ids, images) if self._with_boundaries else ()
        digest = self._digest(message.chat, ids) if message.chat is not None and message.show_ids else ""
        prediction = self._predicted(message.prediction)
        return Prompt(ids, forced, boundaries, digest, prediction, images.rows(ids))

    def _images(self, prompt: protocol.PromptInput) -> PromptImages:
        """The images of a prompt. Raises UsageError where the model sees none."""
        images = prompt.images if isinstance(prompt, (protocol.ChatInput, protocol.TextInput)) else ()
        return PromptImages(images, self._model.tokenize, self._encoder)

    def _predicted(self, text: str) -> list[int]:
        """The ids of a prediction. Raises UsageError for one that no answer can have."""
        ids = self._model.tokenize(text, False, False) if text else []
        if len(ids) > self._n_ctx:
            with _naming_prediction():
                raise context_length_error(len(ids), self._n_ctx, n_ctx_train=self._model.n_ctx_train)
        return ids

    def _digest(self, chat: protocol.ChatInput, ids: Sequence[int]) -> str:
        """A hash by which these ids are known to be of this prompt. Raises as `_ids`."""
        text = "".join(part.text for part in self._render(chat, chat.messages))
        return prompt_digest(text, (token_bytes(self._model, i) for i in ids))

    def _render(self, chat: protocol.ChatInput, messages: Sequence[Mapping[str, Any]]) -> list[PromptPart]:
        return self.calls.render(self.template, messages, chat.variables, chat.tools, chat.prefix_thought)

    def _continued(self, chat: protocol.ChatInput, parts: Sequence[PromptPart]) -> list[PromptPart]:
        return self.calls.continued(self.template, parts, chat.prefix, chat.prefix_thought)

    def rendered(self, chat: protocol.ChatInput) -> list[PromptPart]:
        """A chat with the beginning of its answer. Raises UsageError, TemplateError, ContextLengthError."""
        self.limit.check_messages(chat.messages)
        self.limit.check_tools(chat.tools)
        chat = self.calls.apart(chat)
        return self._continued(chat, self._render(chat, chat.messages))

    def _boundaries(
        self, prompt: protocol.PromptInput, ids: Sequence[int], images: PromptImages
    ) -> Sequence[Boundary]:
        """The boundaries in a chat's prompt, or in one that fills a gap. Raises as `_ids`."""
        if isinstance(prompt, protocol.Infill):
            return infill_boundaries(self._model, ids)
        if not isinstance(prompt, protocol.ChatInput) or len(ids) < GAP:
            return ()
        parts = self._continued(prompt, self._render(prompt, prompt.messages))
        return chat_boundaries(
            prompt.messages,
            parts,
            ids,
            lambda messages: self._render(prompt, messages),
            lambda some: encode(some, images.tokenize, "", False),
        )

    def _ids(self, prompt: protocol.PromptInput, images: PromptImages) -> list[int]:
        model = self._model
        match prompt:
            case protocol.TextInput(text):
                ids = images.tokenize(text, model.adds_bos, True)
                if len(ids) > 1 and ids[0] == ids[1] == model.bos_id and model.adds_bos:
                    del ids[0]  # the prompt has a BOS of its own
                return ids
            case protocol.MixedInput(parts):
                all_ids: list[int] = []
                for i, part in enumerate(parts):
                    if isinstance(part, str):
                        all_ids += model.tokenize(part, model.adds_bos and i == 0, True)
                    else:
                        all_ids += _checked(part, model, "prompt")
                return all_ids
            case protocol.Infill():
                return infill_ids(model, prompt, self._n_ctx, self._n_batch)
            case protocol.ChatInput() as chat:
                return self.turns.ids(
                    lambda messages: self._render(chat, messages),
                    lambda parts: self._continued(chat, parts),
                    model,
                    chat,
                    self.limit,
                    images,
                )


@contextlib.contextmanager
def _naming_prediction() -> Iterator[None]:
    """Errors that a text is too long are about the prediction of a request, not about its prompt."""
    try:
        yield
    except ContextLengthError as error:
        n, n_ctx = error.details["n_prompt_tokens"], error.details["n_ctx"]
        problem = f"the prediction has at least {n} tokens, which exceeds the context size of {n_ctx}"
        hint = f"send a shorter one; {option('n_ctx', n)} is the least that could hold it"
        raise UsageError(problem, hint, {"param": "prediction"}) from None


def _checked(ids: Sequence[int], model: LlamaModel, param: str) -> list[int]:
    """Raises UsageError for ids that the model does not have. param: the field with the ids."""
    for i in ids:
        if not isinstance(i, int) or isinstance(i, bool) or not 0 <= i < model.n_vocab:
            message = f"token ids must be from 0 to {model.n_vocab - 1}, not {quoted(i)}"
            raise UsageError(message, details={"param": param})
    return list(ids)


# Answers queries about texts: tokens, the chat template.


_PART_IDS, _PART_CHARS = 1024, 8 * 1024  # of a part of an answer: the front reads it in a few milliseconds


def compile_template(
    loaded: Loaded, process: TemplateProcess
) -> tuple[IsolatedTemplate | None, SpecllamaError | None]:
    """(the chat template, None if the model has none; the error of rendering a test message with it).

    The error is a note when the model is loaded, and raised when the template is used. process: for the
    template; it is ended where there is none.
    """
    model, given = loaded.model, loaded.settings.chat_template
    source = given or loaded.header.chat_template
    if not source:
        process.close()
        return None, None
    bos, eos = model.token_text(model.bos_id), model.token_text(model.eos_id)
    template = None
    try:
        template = IsolatedTemplate(source, model.control_texts, bos, eos, given is None, process)
        template.render([{"role": "user", "content": "Hello"}])
    except SpecllamaError as error:
        return template, error
    return template, None


def answer_query(
    question: protocol.Question, model: LlamaModel, prompts: Prompts
) -> Iterator[protocol.Tokenized | protocol.QueriedText | protocol.QueriedText | protocol.TokenCount]:
    """In any thread. Raises TemplateError, UsageError, ContextLengthError before the first part."""
    if isinstance(question, protocol.Tokenize):
        prompts.limit.check(question.text, question.parse_special)
        ids = model.tokenize(question.text, question.add_special and model.adds_bos, question.parse_special)
        for begin in range(0, max(1, len(ids)), _PART_IDS):
            part = ids[begin : begin + _PART_IDS]
            pieces = [token_bytes(model, i).decode("latin-1") for i in part] if question.with_pieces else []
            yield protocol.Tokenized(question.id, part, pieces, begin + _PART_IDS < len(ids))
    elif isinstance(question, protocol.Detokenize):
        for text, more in _texts(_detokenized(model, question, prompts)):
            yield protocol.QueriedText(question.id, text, more)
    elif isinstance(question, protocol.Render):
        parts = prompts.rendered(question.chat)
        for text, more in _texts(shown("".join(part.text for part in parts))):
            yield protocol.QueriedText(question.id, text, more)
    elif isinstance(question, protocol.CountTokens):
        request = protocol.Generate(question.id, prompts.calls.apart(question.chat))
        yield protocol.TokenCount(question.id, len(prompts.prompt(request).ids))


def _detokenized(model: LlamaModel, question: protocol.Detokenize, prompts: Prompts) -> str:
    _checked(question.ids, model, "tokens")
    prompts.limit.check_size(sum(len(token_bytes(model, i)) for i in question.ids))
    return detokenize(model, question.ids, special=not question.skip_special)


def _texts(text: str) -> Iterator[tuple[str, bool]]:
    for begin in range(0, max(1, len(text)), _PART_CHARS):
        yield text[begin : begin + _PART_CHARS], begin + _PART_CHARS < len(text)

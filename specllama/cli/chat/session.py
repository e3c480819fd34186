"""A chat in progress: its conversation and settings, and how a message is answered."""

from __future__ import annotations

import bisect
import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from specllama.cli import console, readout
from specllama.cli.answer import INTERRUPTED, AttachedImage, attached, check_reads_images, cut_short, dropped
from specllama.cli.chat import engine as chat_engine
from specllama.cli.chat.conversation import MAX_IMAGE_BYTES, Conversation, Turn, rescue, write
from specllama.cli.chat.engine import ChatEngine, LeaveError
from specllama.cli.chat.library import ChatLibrary, ChatSaver, command
from specllama.cli.chat.terminal import PROMPT, Screen
from specllama.client.protocol import EarlierTurn
from specllama.client.stream import GenerationResult
from specllama.core.gain import gain
from specllama.core.sampling.params import UNTIL_CONTEXT_FULL
from specllama.core.stats import RunStats, summed
from specllama.errors import ContextLengthError, EngineDiedError, SpecllamaError, UsageError
from specllama.images import MAX_IMAGES
from specllama.json_types import JsonObject
from specllama.text.terminal import visible
from specllama.wording import counted

_LEAST = 16  # tokens of room that are worth going on for
_WAYS = "/trim forgets the oldest turns, /clear all of them; -c N makes the context larger"


def find_room(cuts: Sequence[int], count: Callable[[int], int | None], n_ctx: int) -> tuple[int, int] | None:
    """(The fewest turns whose end leaves half of the context free, since what follows a cut is read again and
    a next cut should be far; where none does, all that can go; the tokens of the prompt without them). None
    where that makes too little room.

    cuts: the numbers of turns that can go, increasing. count: tokens of the prompt without so many turns,
    None for more than the context; it decreases.
    """
    if not cuts:
        return None

    at = bisect.bisect_left(cuts, True, key=lambda n: (left := count(n)) is not None and 2 * left <= n_ctx)
    n = cuts[min(at, len(cuts) - 1)]
    left = count(n)
    if left is None or left > n_ctx - max(_LEAST, n_ctx // 8):
        return None
    return n, left


def rest_of(turn: Turn, params: Mapping[str, Any], last: GenerationResult | None) -> Mapping[str, Any] | None:
    """The parameters for the rest of an answer that filled the context; None where it cannot go on: it was to
    end there, has a form that only a whole answer has, or ends in calls. last: what was generated of it.
    """
    if last is None or last.params is None or turn.calls or {"json_schema", "grammar"} & set(params):
        return None
    n = last.params.max_tokens
    if n == UNTIL_CONTEXT_FULL:
        return None
    return {**params, "max_tokens": n - last.stats.n_predict} if n > 0 else params


def turn_line(answer: GenerationResult) -> str:
    """Rate, speed-up, acceptance, prompt tokens evaluated and reused, time to first token, if measured."""
    stats = answer.stats
    share = 100 * stats.n_accept / max(1, stats.n_drafted)
    parts = [
        f"{stats.decode_tps:.1f} t/s" if stats.decode_tps else "",
        gain(stats, answer.plain).in_words(),
        f"accept {share:.0f} % of {stats.n_drafted}" if stats.n_drafted else "",
        f"forced {stats.n_forced_accept}" if stats.n_forced else "",
        f"prompt {stats.n_evaluated} evaluated, {stats.n_reused} reused",
        f"first token {stats.ttft_seconds:.3f} s" if stats.n_predict else "",
    ]
    return " · ".join(part for part in parts if part)


@dataclass(slots=True)
class Totals:
    last: GenerationResult | None = None
    answers: int = 0
    n_decoded: int = 0  # tokens after the first of each answer
    sum: RunStats = field(default_factory=RunStats)

    def add(self, answer: GenerationResult) -> None:
        self.last, self.answers = answer, self.answers + 1
        self.sum = summed([self.sum, answer.stats])
        self.n_decoded += max(0, answer.stats.n_predict - 1)

    def lines(self, n_ctx: int) -> list[str]:
        """The full read-out of the last answer, and the totals."""
        if self.last is None:
            return ["no answer yet"]
        stats, total = self.last.stats, self.sum
        used = stats.n_prompt + stats.n_predict
        rate, written = "", counted(total.n_predict, "token")
        if total.decode_seconds > 0:
            rate = f" at {self.n_decoded / total.decode_seconds:.1f} t/s"
        lines = [
            *readout.lines(stats, self.last.plain, self.last.off_reason, self.last.seed),
            f"context   = {used} of {n_ctx} tokens after it",
            "",
            f"session   = {counted(self.answers, 'answer')}, {written} written{rate}",
            f"            {counted(total.n_evaluated, 'prompt token')} evaluated, {total.n_reused} reused",
        ]
        if total.n_drafted:
            share = 100 * total.n_accept / total.n_drafted
            lines.append(f"            {total.n_drafted} drafted, {total.n_accept} accepted ({share:.1f} %)")
        return lines


@dataclass(slots=True)
class ChatSession:
    """The state that the commands of a chat act on.

    variables: of the chat template. saver: where the conversation is saved as it goes, with the options that
    it is held with. may_drop: asked, once it has been said what goes and what that frees, whether the oldest
    turns may go where the context is full; None for a script, which has to say so before. may_rescue: whether
    a conversation that is not saved may be written to a file where the chat ends unexpectedly. file: the last
    one saved to or loaded from. flags: the sampling parameters of the command line, and system: its system
    message, None without one; both go before those of a conversation that the chat goes on with, which go
    before of_files: the parameters of files and the environment.
    results: of the calls in the last answer, as far as they were typed. used: the engine's values of the
    parameters that were not set. images: for the next message.
    """

    engine: ChatEngine
    screen: Screen
    conversation: Conversation
    variables: JsonObject
    interactive: bool
    saver: ChatSaver
    may_drop: Callable[[], bool] | None
    options: JsonObject = field(default_factory=dict)
    may_rescue: bool = True
    speculate: bool = True
    file: str = ""
    flags: Mapping[str, Any] = field(default_factory=dict)
    of_files: Mapping[str, Any] = field(default_factory=dict)
    system: str | None = None
    results: list[JsonObject] = field(default_factory=list)
    used: JsonObject = field(default_factory=dict)
    totals: Totals = field(default_factory=Totals)
    images: list[AttachedImage] = field(default_factory=list)
    _was_refused: bool = False

    @property
    def params(self) -> JsonObject:
        """The sampling parameters that were set."""
        return self.conversation.params

    @property
    def structured(self) -> bool:
        """Whether a grammar restricts the answers."""
        return "json_schema" in self.params or "grammar" in self.params or self.engine.tools is not None

    def _described(self) -> Conversation:
        """The conversation with its models and options, as a file holds it."""
        self.conversation.options = self.options
        self.conversation.models = {
            name: {key: getattr(model, key) for key in ("name", "path", "quant")} if model else None
            for name, model in (("target", self.engine.info.target), ("draft", self.engine.info.draft))
        }
        return self.conversation

    def keep(self) -> None:
        """Save the conversation where chats are saved as they go, if it has changed."""
        self.saver.save(self._described())

    def begin_another(self) -> None:
        """Let the conversation be: what is saved from now on is another one."""
        self.keep()
        self.saver.close()
        self.conversation.name = ""

    def save(self, name: str) -> None:
        """Write the conversation to a file. Raises UsageError, ResourceError."""
        path = write(name, self._described())
        self.file, self.conversation.changed = name, False
        console.note(f"{counted(len(self.conversation.turns), 'turn')} saved in {visible(str(path))}")

    def restore(self, saved: Conversation, name: str = "", file: str = "") -> None:
        """Go on with a conversation, with its system message and parameters, and show what has changed with
        them, and the last turn. name, file: under which it is saved, or which it is from.
        """
        chat_engine.refuse_logprobs(saved.params)
        saved.reads_images = self.engine.info.vision
        n_images = sum(len(turn.images) for turn in saved.turns)
        if saved.reads_images:
            saved.images()  # raises where one is damaged
        elif n_images:
            console.note(f"note: this model reads no images; {n_images} of it are left out")
        before, self.conversation, self.file = self.conversation, saved, file
        saved.name = name or before.name
        saved.params = {**self.of_files, **saved.params, **self.flags}
        if self.system is not None:
            saved.system = self.system
        n = counted(len(saved.turns), "turn")
        console.note(f"going on with {visible(name)}: {n}" if name else f"{n} loaded from {visible(file)}")
        for line in chat_engine.restored(before.system, before.params, saved.system, saved.params):
            console.note(visible(line))
        if saved.dropped:
            dropped = counted(len(saved.dropped), "turn")
            console.note(f"note: the oldest {dropped} of it, dropped before, are not shown to the model")
        if self.interactive:
            self._show_last()
        if saved.turns and saved.turns[-1].cut == "cancel":
            console.note("note: the last answer was stopped")
        if saved.waiting:
            console.note("note: the last message has no answer; /regen asks for one")
        self.results = []
        if saved.open_calls:
            self._ask_for_result()
        then, now = saved.target, self.engine.info.target.name
        if then and then != now:
            console.note(f"note: it was held with {visible(then)[:80]}; {now} continues it")

    def _show_last(self) -> None:
        turns = self.conversation.turns
        if len(turns) > 1:
            self.screen.dim("the last of them:")
        for turn in turns[-1:]:
            text = turn.message or "\n".join(str(result.get("content")) for result in turn.results)
            self.screen.dim(visible(f"{PROMPT}{text}"))
            for image in turn.images:
                self.screen.dim(f"with {visible(image.name)}")
            if turn.answer is not None:
                self.screen.begin(GenerationResult())
                self.screen.show(turn.answer, ((len(turn.answer), ""),))
                for call in turn.calls:
                    self.screen.line(visible(chat_engine.call_text(call)))
                self.screen.end()

    def attach(self, images: Sequence[AttachedImage]) -> None:
        """Have the next message have these images too, and say so. Raises UsageError."""
        check_reads_images(images, self.engine.info.vision, self.engine.info.target.path)
        there = [one for turn in self.conversation.turns for one in turn.images]
        together = [*there, *self.images, *(one.decoded() for one in images)]
        hint = "/trim forgets the oldest turns, /clear all of them, /image clear those that were not sent"
        if len(together) > MAX_IMAGES:
            raise UsageError(f"a conversation has at most {MAX_IMAGES} images, not {len(together)}", hint)
        if (n := sum(len(one.data) for one in together)) > MAX_IMAGE_BYTES:
            limit = f"{MAX_IMAGE_BYTES // 10**6} MB"
            raise UsageError(f"the images of a conversation have at most {limit}, not {n / 1e6:.1f}", hint)
        self.images += images
        for one in images:
            console.note(f"{one} goes with the next message")

    def without_dropped(self, line: str) -> str:
        """A line without the paths of image files at its end, which are attached: what terminals paste where
        files are dropped. Raises UsageError.
        """
        text, paths = dropped(line)
        if not paths or (text and not self.engine.info.vision):
            return line
        self.attach([attached(path) for path in paths])
        return text

    def say(self, message: str) -> None:
        """Send a message and show its answer; a message without any answer is removed again.

        Raises SpecllamaError, LeaveError; EngineDiedError, after which the message is kept.
        """
        if self.conversation.waiting:
            self.conversation.turns.pop()
            console.note("note: the message before, which had no answer, is left out")
        calls = self.conversation.open_calls
        if calls:
            call = calls[len(self.results)]
            about = {"tool_call_id": call["id"], "name": call["function"]["name"]}
            self.results.append({"role": "tool", **about, "content": message})
            if len(self.results) < len(calls):
                self._ask_for_result()
                return
            turn = Turn("", results=self.results)
            self.results = []
        else:
            turn = Turn(message, images=self.images)
            self.images = []
        self.conversation.turns.append(turn)
        self.keep()  # a chat that is killed loses the answer alone
        try:
            written = self._answer(turn, self.params)
        except EngineDiedError:
            raise
        except SpecllamaError:
            self._remove_unanswered(turn)
            raise
        if not written:
            self._remove_unanswered(turn)
            console.note("note: stopped before anything was written; the message is taken back")

    def _remove_unanswered(self, turn: Turn) -> None:
        if turn.answer is None:
            self.conversation.turns.pop()
            self.images = [*turn.images, *self.images]

    def say_again(self) -> None:
        """Answer the last message again: with a new seed, or the one set plus one each time.

        Raises UsageError where there is none, else as `say`. The old answer stays if there is no new one.
        """
        if not self.conversation.turns:
            raise UsageError("there is nothing to answer again")
        turn, params = self.conversation.turns[-1], dict(self.params)
        if params.get("temperature", self.used.get("temperature")) == 0:
            self.screen.dim("at temperature 0 only a changed conversation changes the answer")
        elif turn.answer is not None and params.get("seed") is not None:
            turn.n_regenerated += 1
            params["seed"] = (params["seed"] + turn.n_regenerated) % 2**64
            self.screen.dim(f"seed {params['seed']}: the one set plus {turn.n_regenerated}")
        if not self._answer(turn, params):
            console.note("note: stopped before anything was written; all is as before")

    def _answer(self, turn: Turn, params: JsonObject) -> bool:
        """Answer the last turn. Where the context is full, before it or in the midst of it, the oldest turns
        may be dropped, and it goes on. False where Ctrl-C came before any text, or the user drops none.
        """
        ways = _WAYS if self.may_drop is not None else f"{_WAYS}; --drop-oldest drops the oldest turns"
        n_ctx = self.engine.info.n_ctx
        try:
            written = self._generate(turn, params)
        except ContextLengthError as error:
            if not self._make_room(error.details.get("n_prompt_tokens")):
                if not self._was_refused:
                    hint = f"it was not sent; {ways}"
                    raise ContextLengthError(error.message, hint, error.details) from None
                console.note(f"note: no turns were dropped; {ways}")
                return False
            written = self._generate(turn, params)
        while written and turn.cut == "context":
            begun, left = turn.answer or "", rest_of(turn, params, self.totals.last)
            if left is None or not self._make_room(n_ctx, begun):
                self.screen.end()
                console.note(f"note: the context of {n_ctx} tokens is full, the answer was cut; {ways}")
                return True
            if not self._generate(turn, left, begun):
                return True
        return written

    def _make_room(self, n_tokens: int | None, prefix: str = "") -> bool:
        """Drop the oldest turns, if that makes room and the user agrees. The system message, the last message
        and what belongs to it stay. n_tokens: that there are, None for unknown. prefix: of the answer.
        """
        self._was_refused = False
        engine, n_ctx, talk = self.engine, self.engine.info.n_ctx, self.conversation

        def count(n: int) -> int | None:
            return engine.count(talk, n, self.variables, prefix)

        room = find_room(talk.cuts, count, n_ctx) if self.may_drop is not None else None
        if room is None or self.may_drop is None:
            return False
        n_turns, n_left = room
        frees = f"frees {counted(n_tokens - n_left, 'token')}" if n_tokens else ""
        frees = frees or f"leaves {counted(n_left, 'token')}"
        stays = "; the system message stays" if talk.system else ""
        turns = f"the oldest {counted(n_turns, 'turn')}"
        console.note(f"the context of {n_ctx} tokens is full: dropping {turns} {frees}{stays}")
        self._was_refused = not self.may_drop()
        if not self._was_refused:
            talk.trim(n_turns)
        return not self._was_refused

    def _generate(self, turn: Turn, params: Mapping[str, Any], prefix: str = "") -> bool:
        """Generate for the last turn; the text becomes its answer, after the prefix, however the generation
        ends. False where Ctrl-C came before any text.
        """
        answer, id_, written = GenerationResult(self.engine.answer_reader()), None, False
        self.results = []
        self.screen.begin(answer, goes_on=bool(prefix) and not self.interactive)
        try:
            id_ = self.engine.answer(
                self.conversation, params, self.speculate, self.variables, answer, self.screen.show, prefix
            )
        except KeyboardInterrupt:
            if answer.params or not self.interactive:  # the second Ctrl-C: the first only stops the answer
                raise LeaveError(INTERRUPTED) from None
        finally:
            if held := answer.release():
                self.screen.show(held.text, held.runs)
            calls = chat_engine.show_calls(self.screen, answer.calls)
            if answer.text or calls or answer.finish_reason not in ("", "cancel"):
                turn.answer, turn.calls, turn.id, written = prefix + answer.text, calls, id_, True
                reason = answer.finish_reason or "cancel"
                turn.cut = {"stop": "", "loop": "length"}.get(reason, reason)
                self.conversation.changed, self.conversation.tokens = True, None
                if answer.digest and answer.ids:  # with which a later chat goes on
                    n = len(self.conversation.messages(answered=False))
                    ids = [*answer.prompt_ids, *answer.ids]
                    self.conversation.tokens = EarlierTurn(n, answer.n_prompt, ids, answer.digest, prefix)
            goes_on = written and turn.cut == "context" and not self.interactive
            self.screen.end(newline=not goes_on)
        used = asdict(answer.params) if answer.params is not None else {}
        self.used |= {name: value for name, value in used.items() if name not in params}
        for text in self.engine.notices():
            console.note(f"note: {text}")
        if answer.finish_reason:
            self._show_figures(answer)
        if turn.calls:
            self._ask_for_result()
        return written

    def _ask_for_result(self) -> None:
        call = self.conversation.open_calls[len(self.results)]["function"]["name"]
        self.screen.dim(f"type the result of {visible(call)}")

    def _show_figures(self, answer: GenerationResult) -> None:
        """Show figures and notes of an answer that has ended. Raises ResourceError where a script gets one
        that it cannot use, LeaveError.
        """
        self.totals.add(answer)
        self.screen.dim(turn_line(answer))
        _, error = cut_short(answer, self.engine.info.n_ctx)
        if error is not None and not self.interactive and answer.finish_reason != "context":
            raise error
        if answer.finish_reason == "length" and answer.params is not None:
            n = self.params.get("max_tokens", answer.params.max_tokens)  # of the rest of an answer: less
            text = f"note: the answer was cut at max_tokens = {n}; /set max_tokens -1 lets it end by itself"
            console.note(text)
        elif answer.finish_reason == "cancel":
            self.screen.dim("stopped; what was written is kept" if answer.text else "stopped")
            if not self.interactive:
                raise LeaveError(INTERRUPTED)
        elif not answer.text and not answer.calls and answer.finish_reason != "context":
            self.screen.dim("the answer is empty")

    @property
    def unsaved(self) -> bool:
        """Whether something was written that no file has."""
        return self.conversation.changed and any(turn.answer is not None for turn in self.conversation.turns)

    def rescue(self) -> None:
        """Save unsaved changes, before an unexpected end: in the library, or else in a file."""
        changed = self.conversation.changed or self.conversation.waiting
        wanted = self.may_rescue and changed and bool(self.conversation.turns)
        with contextlib.suppress(OSError):  # the terminal may be gone
            if wanted:
                self.saver.library = self.saver.library or ChatLibrary()
            self.keep()
            if self.saver.works:
                how = command(self.conversation.name)
                console.note(f"the conversation is saved: {how} goes on with it")
            elif wanted and (path := rescue(self.conversation)) is not None:
                console.note(f"the conversation is saved: specllama chat --load {path} continues it")
            elif wanted:
                console.warning("the conversation could not be saved")

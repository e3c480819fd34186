"""`specllama chat`: a conversation, at a terminal or line by line from a pipe."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, TextIO

from specllama.cli import console
from specllama.cli.answer import check_reads_images, given_images, log_file
from specllama.cli.chat.commands import completions, run_command
from specllama.cli.chat.conversation import Conversation, read
from specllama.cli.chat.engine import ChatEngine, LeaveError, read_tools, refuse_logprobs
from specllama.cli.chat.library import ChatLibrary, ChatSaver, SavedChat, as_name, command
from specllama.cli.chat.session import ChatSession
from specllama.cli.chat.terminal import HistoryFile, InputReader, LineReader, Screen, TerminalReader
from specllama.cli.options import resolved, sampling
from specllama.cli.progress import prepared
from specllama.config import build, defaults
from specllama.config.store import cache_dir
from specllama.config.text_file import standard_input
from specllama.errors import EngineDiedError, NotFoundError, ResourceError, SpecllamaError, UsageError
from specllama.option import OptionValues
from specllama.text.prompt_parts import reasoning_variables
from specllama.text.terminal import visible
from specllama.wording import counted


def chat(given: Mapping[str, Any]) -> int:
    """Converse until the user leaves; returns the exit code. Raises SpecllamaError."""
    library = ChatLibrary()
    taken = chosen(given, library)
    if taken is not None:
        given = with_options(given, taken)
    values = resolved(given)
    standard_input.taken_by = "the messages of the chat"
    params = sampling(values)
    of_files = build.sampling({name: values[name] for name in values.origins})
    refuse_logprobs(params)
    variables = reasoning_variables(values.get("reasoning", "auto"))
    saved = read(values["load"]) if "load" in values else None
    tools = read_tools(values["tools"]) if "tools" in values else None
    if tools is not None and ("json_schema" in params or "grammar" in params):
        raise UsageError("cannot be used with a schema or a grammar", option="tools")
    images = given_images(values)
    saver = _saver(values, library, taken)
    settings = prepared(build.load_settings(values, 1, defaults.KEPT_SECONDS), values)
    check_reads_images(images, bool(settings.projector), settings.target.path)
    log = log_file(values)
    with contextlib.ExitStack() as stack:
        stack.enter_context(log or contextlib.nullcontext())
        engine = stack.enter_context(ChatEngine(settings, values, log))
        reader = _reader(keeps=not values.get("no_history", False))  # while the engine process starts
        engine.measure_when_idle, engine.tools = reader.interactive, tools
        engine.end_loops = not reader.interactive
        talk = Conversation(params=params, name=as_name(values.get("name", "")))
        screen = Screen(not reader.interactive, values.get("show_draft", False))
        session = ChatSession(
            engine, screen, talk, variables, reader.interactive, saver,
            _may_drop(reader, values.get("drop_oldest", False)), options_of(given, values),
            may_rescue=not values.get("no_save", False),
            flags={name: value for name, value in params.items() if of_files.get(name) != value},
            of_files=of_files,
            system=values.get("system_prompt"),
        )  # fmt: skip
        engine.load(session.structured)
        if saved is not None:
            session.restore(saved, file=values["load"])
        if taken is not None and taken.saved is not None:
            session.restore(taken.saved, taken.name)
        if session.system is not None:
            session.conversation.system = session.system
        session.conversation.reads_images = engine.info.vision
        session.attach(images)
        _greet(session, values.get("show_draft", False))
        try:
            code = _converse(session, reader)
        except console.ReaderGoneError:
            raise
        except BaseException:  # also because the terminal is gone
            session.rescue()
            raise
        if not code:  # otherwise it is said already
            if session.interactive and saver.works:
                again = "specllama chat --continue goes on with it"
                screen.dim(f"saved as {visible(session.conversation.name)}; {again}")
            code = ResourceError.exit_code if saver.failed and not session.interactive else 0
        saver.close()
        last = session.totals.last
        if not session.interactive and last is not None and last.unmeasured:
            session.engine.calibrate()
        return code


def _saver(values: Mapping[str, Any], library: ChatLibrary, taken: SavedChat | None) -> ChatSaver:
    """Saves the conversation: always where it is typed at a terminal, from a pipe only if it has a name.
    Raises ResourceError where another chat has the conversation.
    """
    typed = sys.stdin is not None and sys.stdin.isatty()
    wanted = not values.get("no_save", False) and (typed or taken is not None or "name" in values)
    if not wanted and "name" in values:
        console.note("note: --name has no effect, since --no-save is set")
    saver = ChatSaver(library if wanted else None)
    if taken is not None:
        saver.take_up(taken)
    return saver


def _may_drop(reader: InputReader, always: bool) -> Callable[[], bool] | None:
    """Whether the oldest turns may go: the user is asked (Ctrl-C: no), a script has --drop-oldest."""
    if always or not reader.interactive:
        return (lambda: True) if always else None

    def agreed() -> bool:
        console.note("type y to drop them and go on, or Enter to leave all as it is")
        with contextlib.suppress(KeyboardInterrupt, UsageError):
            return reader.read_name().lower() in ("y", "yes")
        return False

    return agreed


def _reader(keeps: bool) -> InputReader:
    """A line editor where messages are typed at a terminal that supports it; else plain lines. keeps: whether
    what is typed is kept for later chats.

    Where stdout is no terminal, as in a pipe to tee, the editor draws on stderr or on the terminal itself: it
    has no limit on the length of a line, which terminals have.
    """
    editor = _drawable() if sys.stdin is not None and console.supports_ansi(sys.stdin) else None
    if editor is None:
        return LineReader()
    return TerminalReader(completions(), HistoryFile(cache_dir() / "chat_history", keeps), editor)


def _drawable() -> TextIO | None:
    """The terminal that the line editor draws on, None if there is none."""
    for stream in (sys.stdout, sys.stderr):
        if console.supports_ansi(stream):
            return stream
    try:
        return open(os.ctermid(), "w")
    except (OSError, AttributeError):
        return None


def _greet(session: ChatSession, show_draft: bool) -> None:
    if show_draft and session.screen.show_draft:
        session.screen.legend()
    elif show_draft:
        text = "note: --show-draft needs a terminal with colours (see NO_COLOR and TERM); nothing is marked"
        console.note(text)
    if session.interactive:
        session.screen.dim("/help lists the commands, Ctrl-D leaves")


def _converse(session: ChatSession, reader: InputReader) -> int:
    """Answer inputs until the user leaves. Returns the exit code, from a pipe that of the first error."""
    code = 0
    while True:
        try:
            typed = reader.read()
            if typed is None:
                raise LeaveError(0)
            plain = not typed.literal
            text = session.without_dropped(typed.text) if plain and session.interactive else typed.text
            if plain and text.startswith("/") and not text.startswith("//"):
                run_command(session, text)
            elif (message := text.removeprefix("/") if plain else text).strip():
                session.say(message)
            session.keep()
        except LeaveError as leave:
            if leave.code:
                session.rescue()
            else:
                session.keep()
                _offer_to_save(session, reader)
            return leave.code or code
        except EngineDiedError:
            raise
        except SpecllamaError as error:
            session.keep()
            _show_error(error)
            code = code or (0 if session.interactive else error.exit_code)
        except KeyboardInterrupt:
            if not session.interactive:
                raise
            console.note("Ctrl-D or /exit leaves")


def _offer_to_save(session: ChatSession, reader: InputReader) -> None:
    """Ask the user for a file if the conversation could not be saved. Ctrl-C and Ctrl-D leave at once."""
    while session.interactive and session.may_rescue and session.unsaved:
        n = counted(len(session.conversation.turns), "turn")
        console.note(f"{n} not saved: type the name of a file that keeps the conversation, or Enter for none")
        try:
            name = reader.read_name().removeprefix("/save ")
            if not name:
                return
            session.save(name)
        except SpecllamaError as error:
            _show_error(error)
        except KeyboardInterrupt:
            return


def _show_error(error: SpecllamaError) -> None:
    shown = error.with_option_names(console.as_flag)
    console.error(visible(shown.message), visible(shown.hint))  # may quote a file


_MODEL, _DRAFT = ("model", "hf_repo"), ("draft_model", "hf_repo_draft")
_OF_DRAFT = ("draft_vocab",)
_OF_MODEL = ("chat_template", "chat_template_file", "tool_format")
_OTHERS = ("n_ctx", "reasoning", "tools")
_FILES = ("model", "draft_model", "chat_template_file", "tools")
_MAX_WARNINGS = 3


def chosen(given: Mapping[str, Any], library: ChatLibrary) -> SavedChat | None:
    """The conversation that the flags name; None for a new one. Raises UsageError for flags that exclude each
    other, NotFoundError, IntegrityError, ResourceError.
    """
    if "continued" not in given:
        _check_name(given, library)
        return None
    for other in ("load", "name"):
        if other in given:
            hint = "/name renames a conversation" if other == "name" else ""
            raise UsageError("cannot be used with --continue", hint, option=other)
    if given["continued"].strip():
        return library.find(given["continued"])
    chat, damaged = library.last()
    for one in damaged[:_MAX_WARNINGS]:
        why = visible(f"{one.name!r}: {one.problem}")
        console.warning(f"a newer conversation cannot be read, {why} (id {one.id})")
    return chat


def _check_name(given: Mapping[str, Any], library: ChatLibrary) -> None:
    if "name" not in given:
        return
    name = as_name(given["name"])
    if not name:
        raise UsageError("needs a letter or another visible character", option="name")
    unused = name
    with contextlib.suppress(ResourceError):  # the chat goes on, and says that it is not saved
        unused = library.unused(name)
    if unused != name:
        message = f": there is a conversation {name!r} already"
        raise UsageError(message, f"{command(name)} goes on with it", option="name")


def options_of(given: Mapping[str, Any], values: Mapping[str, Any]) -> OptionValues:
    """The options that a conversation is saved with: its models and whether the draft's tokens are
    translated, wherever they are set, and what flags say of templates, tools and the context. given: flags;
    values: merged with files and the environment.
    """
    chosen = {name: values[name] for name in (*_MODEL, *_DRAFT, *_OF_DRAFT) if name in values}
    chosen |= {name: given[name] for name in (*_OF_MODEL, *_OTHERS) if name in given}
    for name in chosen.keys() & set(_FILES):  # by their whole paths, so that they are found from elsewhere
        path = os.path.expanduser(chosen[name])
        chosen[name] = os.path.abspath(path) if os.path.exists(path) else chosen[name]
    return chosen


def with_options(given: Mapping[str, Any], chat: SavedChat) -> OptionValues:
    """The flags, and the options of the conversation where no flag says something else. Raises NotFoundError
    where its model is gone and no other one is given.
    """
    assert chat.saved is not None
    names = (*_MODEL, *_DRAFT, *_OF_DRAFT, *_OF_MODEL, *_OTHERS)
    kept = {name: chat.saved.options[name] for name in names if name in chat.saved.options}
    if any(name in given for name in _MODEL):
        kept = {name: value for name, value in kept.items() if name in _OTHERS}
    elif any(name in given for name in _DRAFT):
        kept = {name: value for name, value in kept.items() if name not in _DRAFT}
    if _is_gone(kept.get("model")):
        message = f"the model of the conversation {visible(chat.name)!r} is gone: {kept['model']}"
        raise NotFoundError(message, f"{command(chat.name)} -m MODEL goes on with another one")
    if _is_gone(kept.get("draft_model")):
        console.note(f"note: the draft of the conversation is gone: {visible(kept.pop('draft_model'))}")
    return {**kept, **given}


def _is_gone(value: str | None) -> bool:
    return value is not None and os.path.isabs(value) and not os.path.exists(value)

"""The commands of a chat, which begin with a slash."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from specllama.cli import console
from specllama.cli.answer import attached, dropped
from specllama.cli.chat.conversation import read
from specllama.cli.chat.engine import NAMES, LeaveError, assign, idle, parameter, shown
from specllama.cli.chat.library import ChatLibrary
from specllama.cli.chat.session import ChatSession
from specllama.cli.chat.terminal import FILE
from specllama.cli.formatting import nearest
from specllama.cli.options import refuse_stdout
from specllama.errors import UsageError
from specllama.text.terminal import visible
from specllama.wording import counted


@dataclass(frozen=True, slots=True)
class Command:
    """One command. usage: its arguments, for the help; words: completions of an argument."""

    act: Callable[[ChatSession, str], None]
    usage: str
    help: str
    words: tuple[str, ...] = ()


def run_command(session: ChatSession, text: str) -> None:
    """Run the command of a line that begins with a slash. Raises UsageError and what the command raises."""
    name, rest = (*text.split(maxsplit=1), "")[:2]
    command = COMMANDS.get(_ALIASES.get(name, name))
    if command is None:
        hint = "/help lists the commands; a message that begins with / is typed with //"
        raise UsageError(f"there is no command {visible(name)[:60]}{nearest(name, COMMANDS)}", hint)
    rest = rest.strip()
    if rest and not command.usage:
        raise UsageError(f"{name} takes no argument")
    command.act(session, rest)


def completions() -> Mapping[str, tuple[str, ...]]:
    return {name: command.words for name, command in COMMANDS.items()}


def _help(_session: ChatSession, _rest: str) -> None:
    width = max(len(f"{name} {command.usage}") for name, command in COMMANDS.items())
    for name, command in COMMANDS.items():
        console.note(f"{f'{name} {command.usage}':{width}}  {command.help}")
    text = '""" on a line of its own begins and ends a message of several lines; Alt-Enter adds a line.'
    console.note(text)
    console.note("Ctrl-C stops an answer and keeps it; Ctrl-D leaves. // begins a message with a slash.")


def _system(session: ChatSession, rest: str) -> None:
    conversation = session.conversation
    if not rest:
        console.note(visible(conversation.system) or "no system message")
        return
    conversation.system = "" if rest in ('""', "''") else rest
    conversation.changed = bool(conversation.turns)
    done = "set" if conversation.system else "removed"
    effect = "; the conversation stays, and is read again with the next message" if conversation.turns else ""
    console.note(f"system message {done}{effect}")


def _set(session: ChatSession, rest: str) -> None:
    typed, _, value = rest.partition(" ")
    names = (parameter(typed),) if typed else NAMES
    before = idle(session.params)
    if value:
        session.conversation.params = assign(session.params, names[0], value.strip())
    for name in names:
        console.note(visible(shown(name, session.params, session.used)))
    for sentence in idle(session.params):
        if sentence not in before:
            console.note(f"note: {sentence}")


def _clear(session: ChatSession, _rest: str) -> None:
    n = len(session.conversation.turns)
    session.keep()
    kept = "; the system message stays" if session.conversation.system else ""
    kept += f"; saved as {visible(session.conversation.name)}" if n and session.saver.works else ""
    session.begin_another()
    session.conversation.clear()
    console.note(f"{counted(n, 'turn')} forgotten{kept}")


def _save(session: ChatSession, rest: str) -> None:
    name = rest or session.file
    if not name:
        raise UsageError("/save needs the name of a file the first time")
    refuse_stdout(name, "/save")
    session.save(name)


def _load(session: ChatSession, rest: str) -> None:
    if not rest:
        raise UsageError("/load needs the name of a file")
    saved = read(rest)
    session.begin_another()
    session.restore(saved, file=rest)


def _continue(session: ChatSession, rest: str) -> None:
    library = ChatLibrary()
    if not rest:
        chats = [chat for chat in library.chats() if chat.saved is not None]
        for chat in chats[:_SHOWN]:
            console.note(f"{visible(chat.name)}  ({counted(chat.n_turns, 'turn')})")
        if len(chats) > _SHOWN or not chats:
            console.note(f"{len(chats)} in all; specllama chats lists them" if chats else "none is saved")
        return
    chat = library.find(rest)
    if chat.path == session.saver.path:
        raise UsageError(f"{chat.name} is the conversation of this chat")
    session.begin_another()
    session.saver.take_up(chat)
    assert chat.saved is not None
    session.restore(chat.saved, chat.name)


def _name(session: ChatSession, rest: str) -> None:
    if rest:
        session.saver.rename(session.conversation, rest)
    if session.saver.library is None:
        how = "; chat --name NAME saves one as it goes" if session.may_rescue else ""
        console.note(f"the conversation is not saved: /save FILE writes it{how}")
    else:
        console.note(visible(session.conversation.name) or "no name yet: the first question gives one")


def _stats(session: ChatSession, _rest: str) -> None:
    for line in session.totals.lines(session.engine.info.n_ctx):
        console.note(line)


def _trim(session: ChatSession, rest: str) -> None:
    if rest and not re.fullmatch("[1-9][0-9]{0,8}", rest):
        raise UsageError(f"/trim takes a number of turns, not {rest[:60]!r}")
    n = session.conversation.trim(int(rest) if rest else None)
    left = counted(len(session.conversation.turns), "turn")
    console.note(f"the oldest {counted(n, 'turn')} forgotten, {left} left")


def _draft(session: ChatSession, rest: str) -> None:
    info = session.engine.info
    if rest in ("on", "off"):
        session.speculate = rest == "on"
        if info.off_reason and session.speculate:
            raise UsageError(f"no drafter is available: {info.off_reason}")
        console.note(f"drafts {rest}")
    elif rest == "auto" or re.fullmatch("[0-9]{1,9}", rest):
        draft_max = None if rest == "auto" else int(rest)
        if draft_max == session.engine.settings.draft_max:
            console.note("drafts on, the length is the same")
        elif session.engine.draft_up_to(draft_max, session.structured):
            for turn in session.conversation.turns:
                turn.id = None  # of the engine process that is gone
        session.speculate = True
    elif rest:
        raise UsageError(f"/draft takes on, off, auto or a number of tokens, not {rest[:60]!r}")
    else:
        length = "auto" if info.draft_max is None else f"up to {info.draft_max}"
        console.note(f"drafts {'on' if session.speculate else 'off'}, length {length}")


def _image(session: ChatSession, rest: str) -> None:
    if rest == "clear":
        n, session.images = len(session.images), []
        console.note(f"{counted(n, 'image')} taken back")
    elif rest:
        paths = [rest] if os.path.exists(os.path.expanduser(rest)) else dropped(rest)[1] or [rest]
        session.attach([attached(path) for path in paths])
    else:
        for image in session.images:
            console.note(f"{image} goes with the next message")
        if not session.images:
            console.note("no image waits for the next message")


def _exit(_session: ChatSession, _rest: str) -> None:
    raise LeaveError(0)


_SHOWN = 10  # conversations that /continue lists
_ALIASES = {"/quit": "/exit", "/bye": "/exit", "/?": "/help"}
COMMANDS: Mapping[str, Command] = {
    "/help": Command(_help, "", "show this"),
    "/system": Command(_system, "[TEXT]", 'show or set the system message; "" removes it'),
    "/set": Command(_set, "[NAME VALUE]", "show or set sampling parameters; the value default unsets", NAMES),
    "/clear": Command(_clear, "", "forget the conversation, and begin another one"),
    "/regen": Command(
        lambda session, _: session.say_again(),
        "",
        "answer the last message again: new seed, or the one set plus one",
    ),
    "/image": Command(
        _image, "[FILE]", "have the next message have an image too; without FILE: which; clear: none", (FILE,)
    ),
    "/save": Command(_save, "FILE", "write the conversation to a file; later without FILE", (FILE,)),
    "/load": Command(_load, "FILE", "go on with the conversation of a file", (FILE,)),
    "/continue": Command(_continue, "[NAME]", "list saved conversations, or go on with one"),
    "/name": Command(_name, "[NAME]", "show or change the name that the conversation is saved under"),
    "/stats": Command(_stats, "", "the read-out of the last answer, and totals"),
    "/trim": Command(_trim, "[N]", "forget the oldest N turns (default: half of the conversation)"),
    "/draft": Command(
        _draft, "on|off|auto|N", "draft, do not draft, draft at most N tokens", ("on", "off", "auto")
    ),
    "/exit": Command(_exit, "", "leave (or Ctrl-D)"),
}

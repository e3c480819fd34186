"""llama-server's route that saves, restores and erases a slot.

Checks what llama-server checks (`post_slots` in server-context.cpp, `fs_validate_filename` in common.cpp of
the llama.cpp that is installed), in the same order. Each API key has a directory of its own below the one of
--slot-save-path.
"""

from __future__ import annotations

import os
import re

from starlette.responses import JSONResponse, Response

from specllama.client import protocol
from specllama.config.text_file import expanded
from specllama.errors import UsageError
from specllama.json_types import JsonObject
from specllama.server.dialects.shared.base import ApiRequest, ApiRoute
from specllama.server.dialects.shared.fields import RequestBody
from specllama.server.http.errors import UnsupportedError

MAX_NAME = 255  # bytes
_FORBIDDEN = re.compile(
    "[\x00-\x1f\x7f-\x9f"  # control characters
    '/\\\\:*?"<>|'
    "\uff0e\u2215\u2216"  # that look like a dot or a slash
    "\ud800-\udfff\ufffd\ufeff]"  # surrogates, the replacement character, the byte order mark
)
_NUMBER = re.compile(r"[ \t\n\v\f\r]*([+-]?[0-9]{1,20})")  # std::stoi ignores what follows


class SlotFileRequest(RequestBody):
    """filename: of the file, without a directory."""

    filename: str


async def act(api: ApiRequest) -> Response:
    """Raises UnsupportedError without --slot-save-path, UsageError."""
    directory = api.settings.slot_save_path
    if not directory:
        raise UnsupportedError("slots are not saved here: start the server with --slot-save-path DIR")
    slot, action = _slot(str(api.path_params["slot"])), api.query_params.get("action", "")
    if action not in ("save", "restore", "erase"):
        raise UsageError("Invalid action: it is save, restore or erase")
    if action == "erase":
        await _check_slot(api, slot)
        erased = await api.supervisor.query(
            lambda id_: protocol.EraseSlot(id_, slot, api.owner), protocol.SlotDone
        )
        return JSONResponse({"id_slot": slot, "n_erased": erased.n_tokens})
    name = (await api.body(SlotFileRequest)).filename
    if not is_file_name(name):
        raise UsageError("Invalid filename", details={"param": "filename"})
    folder = api.slot_folder
    if folder is None:
        raise UnsupportedError("slots of different keys cannot be told apart: the cache is not usable")
    path = os.path.abspath(expanded(directory) / folder / name)
    await _check_slot(api, slot)
    kind = protocol.SaveSlot if action == "save" else protocol.RestoreSlot
    done = await api.supervisor.query(
        lambda id_: kind(id_, slot, path, api.owner, api.disk_scope), protocol.SlotDone
    )
    return JSONResponse(_shown(action, slot, name, done))


def is_file_name(name: str) -> bool:
    """Whether llama-server accepts this file name."""
    try:
        n_bytes = len(name.encode())
    except UnicodeEncodeError:
        return False
    if not 0 < n_bytes <= MAX_NAME or _FORBIDDEN.search(name):
        return False
    return name[0] != " " and name[-1] not in " ." and ".." not in name


def _slot(text: str) -> int:
    """Raises UsageError."""
    number = _NUMBER.match(text)
    if not number or not -(2**31) <= int(number[1]) < 2**31:
        raise UsageError("Invalid slot ID")
    return int(number[1])


async def _check_slot(api: ApiRequest, slot: int) -> None:
    """Load the model. Raises UsageError for a slot that does not exist."""
    info = await api.supervisor.load()
    if not 0 <= slot < info.n_slots:
        raise UsageError("Invalid slot ID")


def _shown(action: str, slot: int, name: str, done: protocol.SlotDone) -> JsonObject:
    milliseconds = 1000 * done.seconds
    if action == "save":
        return {
            "id_slot": slot,
            "filename": name,
            "n_saved": done.n_tokens,
            "n_written": done.n_bytes,
            "timings": {"save_ms": milliseconds},
        }
    return {
        "id_slot": slot,
        "filename": name,
        "n_restored": done.n_tokens,
        "n_read": done.n_bytes,
        "timings": {"restore_ms": milliseconds},
    }


ROUTES = (ApiRoute("POST", "/slots/{slot}", act, "Save, restore or erase a slot", SlotFileRequest),)

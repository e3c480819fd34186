"""Items of the latest answers, for clients that send references to them, as the AI SDK does unless it is
told that nothing is stored.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Mapping
from typing import Any

from specllama.json_types import JsonObject
from specllama.server.events import to_json

KEPT_BYTES = 16 * 1024 * 1024  # of JSON, of all answers
_MAX_ITEM = 1024 * 1024  # bytes of JSON
_MAX_FOUND = 4 * 1024 * 1024  # bytes of all items that one request refers to


class RecentItems:
    """Holds the most recently used items in memory, each visible to its owner only. most: bytes of JSON.
    Thread-safe.
    """

    def __init__(self, most: int = KEPT_BYTES) -> None:
        self._most, self._size = most, 0
        self._items: dict[tuple[str, str], bytes] = {}  # the one used last at the end
        self._lock = threading.Lock()

    def add(self, owner: str, items: Iterable[Mapping[str, Any]]) -> None:
        """Store items, without the logprobs of their tokens."""
        written = [((owner, item["id"]), to_json(_plain(item))) for item in items]
        with self._lock:
            for key, data in written:
                self._size += len(data) - len(self._items.pop(key, b""))
                self._items[key] = data
                if len(data) > _MAX_ITEM:
                    self._drop(key)
            while self._size > self._most:
                self._drop(next(iter(self._items)))

    def _drop(self, key: tuple[str, str]) -> None:
        self._size -= len(self._items.pop(key))

    def find(self, owner: str, id_: str) -> bytes | None:
        """The JSON of an item, None if it is not held."""
        with self._lock:
            item = self._items.pop((owner, id_), None)
            if item is not None:
                self._items[owner, id_] = item
            return item

    def resolved(self, owner: str, data: JsonObject) -> JsonObject:
        """A request whose references are replaced by the items, each once; unknown references remain."""
        items = data.get("input")
        if not isinstance(items, list):
            return data
        refers = [i for i, item in enumerate(items) if is_reference(item)]
        seen, left, put = set[str](), _MAX_FOUND, list(items)
        for i in refers:
            id_ = items[i].get("id")
            if not isinstance(id_, str) or id_ in seen or (stored := self.find(owner, id_)) is None:
                continue
            seen.add(id_)
            left -= len(stored)
            if left < 0:
                break
            put[i] = json.loads(stored)
        return data | {"input": put} if refers else data


def is_reference(item: Any) -> bool:
    """Whether an item of a request refers to another; its type may be omitted."""
    if not isinstance(item, Mapping):
        return False
    kind = item.get("type")
    return kind == "item_reference" or (kind is None and "role" not in item and "id" in item)


def _plain(item: Mapping[str, Any]) -> JsonObject:
    parts = item.get("content")
    if not isinstance(parts, list):
        return dict(item)
    shown = [{name: part[name] for name in part if name != "logprobs"} for part in parts]
    return {**item, "content": shown}

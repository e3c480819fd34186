"""The options of `serve`, and all that files and the environment may set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from specllama.config.options import DRAFT, MODEL, RUN, SAMPLING, TEMPLATE, Option, table

SERVING = table(
    "Server",
    ("host", "--host", str, "the address to listen at (default 127.0.0.1); others need a key", "ADDRESS"),
    ("port", "--port", int, "the port (default 8080), 0 for any that is free", "N"),
    ("n_slots", "-np --parallel", int, "texts written at once (default 4)", "N"),
    ("queue", "--queue", int, "texts that may wait for a slot (default 64); 429 beyond", "N"),
    ("alias", "-a --alias", list, "a name for the model; * lets clients call it anything", "NAME"),
    ("api_key", "--api-key", list, "a key that clients have to send", "KEY"),
    ("api_key_file", "--api-key-file", str, "a file with one such key a line", "FILE"),
    ("timeout", "--timeout", float, "seconds that a request may take (default 3600, 0 for no limit)", "S"),
    ("drain", "--drain", float, "seconds that what runs has to end after SIGTERM (default 30)", "S"),
    (
        "client_timeout",
        "--client-timeout",
        float,
        "seconds for a client to send or to read (default 30)",
        "S",
    ),
    ("allowed_host", "--allowed-host", list, "a name in the Host header beside this machine's own", "NAME"),
    ("allowed_origin", "--allowed-origin", list, "web pages from this origin may ask", "URL"),
    ("log_prompts", "--log-prompts", bool, "write what clients ask to the log"),
)
SERVER_OUTPUT = table(
    "Output",
    ("verbose", "-v --verbose", bool, "show llama.cpp's log"),
    ("log_file", "--log-file", str, "write llama.cpp's log to a file", "FILE"),
    ("debug", "--debug", bool, "show tracebacks"),
    stored=False,
)
_VLLM = {"draft_model": "--speculative-model", "draft_max": "--num-speculative-tokens"}
SERVE = [
    *SERVING,
    *MODEL,
    *(replace(o, flags=(*o.flags, _VLLM[o.name])) if o.name in _VLLM else o for o in DRAFT),
    *TEMPLATE,
    *SAMPLING,
    *SERVER_OUTPUT,
]
STORED: Mapping[str, Option] = {o.name: o for o in (*RUN, *SERVING) if o.stored}

"""The options of commands that load models: the table of flags, environment variables and TOML keys.

Spellings are llama.cpp's. Load options are generated from the settings classes (load.py), sampling options
from SamplingParams (core/sampling/params.py); the others stand here. Knows no command line:
cli/typer_options.py turns options into flags.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from specllama.config import defaults
from specllama.config.load import EMBEDDER_FIELDS, LOAD_SETTINGS, MODEL_SETTINGS, POOLINGS
from specllama.core.sampling.params import DEFAULT_STEPS, PARAMETERS, STEPS
from specllama.option import CHATS, GGUF, LIST, Option, Scope, row, table

_SETTINGS = (*MODEL_SETTINGS.values(), *LOAD_SETTINGS.values())


def _loading(panel: str, measuring: bool = True) -> list[Option]:
    """The load options of a panel, each followed by the draft's own. measuring: those of commands that
    measure, or else the others.
    """
    options = [o for s in _SETTINGS if s.measuring == measuring for o in (*s.options, *s.draft)]
    return [option for option in options if option.panel == panel]


_OF_EMBEDDERS = {option.name for name in EMBEDDER_FIELDS for option in MODEL_SETTINGS[name].options}

# fmt: off
PROMPT = table("Prompt",
    row("words", "", list, "the prompt, as with -p", "PROMPT..."),
    row("prompt", "-p --prompt", str, "the prompt; what is piped to standard input is appended to it",
        "TEXT"),
    row("file", "-f --file", str, "a file with the prompt, or to append to it; - is standard input", "FILE"),
    row("system_prompt", "-sys --system-prompt", str, "the system message", "TEXT"),
    row("image", "--image", list,
        "an image that the model reads, before the prompt or in the place of <__media__> in it; may be given "
        "several times", "FILE"),
    row("prediction", "--prediction", str,
        "a file that most of the answer is expected to be, as in rewriting it; drafts are made from it",
        "FILE"),
    row("raw", "--raw -no-cnv --no-conversation", bool,
        "use no chat template; control tokens in the prompt are parsed", argument="generate"),
)
ESCAPES = table("Prompt",
    row("escape", "-e --escape", bool, r"process escapes as \n in -p and -r (default), and in -f too"),
    row("no_escape", "--no-escape", bool, "leave escapes in -p and -r as they are"),
)
TEMPLATE = _loading("Prompt") + table("Prompt",
    row("reasoning", "--reasoning", str,
        "on, off or auto: let the model think before it answers; auto: where its template can", "MODE",
        ("on", "off", "auto")),
    stored=True,
)
MODELS = table("Models",
    row("model", "-m --model", str,
        "the target: a GGUF file, a name (specllama models) or user/repo:QUANT (default: the demo model)",
        "MODEL", (GGUF,), scope=Scope.MODEL),
    row("hf_repo", "-hf -hfr --hf-repo", str, "the target from the hub: user/repo[:QUANT]", "REPO",
        scope=Scope.MODEL),
    row("draft_model", "-md --model-draft --spec-draft-model", str,
        "the draft: as -m, auto (default: the known one if it is on disk) or none", "MODEL",
        (GGUF, "auto", "none"), "speculative_model", scope=Scope.MODEL),
    row("hf_repo_draft", "-hfd -hfrd --hf-repo-draft", str, "the draft from the hub: user/repo[:QUANT]",
        "REPO", scope=Scope.MODEL),
    row("force", "--force", bool, "download a pair although its headers do not fit together"),
    stored=True,
)
MODELS_DIR = table("Models",
    row("models_dir", "--models-dir", str,
        "a folder of models, called as their files (default: SPECLLAMA_MODELS_DIR)", "FOLDER"),
)
MODELS += MODELS_DIR
MODELS += _loading("Models")
IMAGES = _loading("Images", measuring=False) + table("Images",
    row("no_mmproj", "--no-mmproj --no-mmproj-auto", bool,
        "look for no projector, and download none: images are refused", argument="mmproj"),
    stored=True,
)
DRAFTING, HARDWARE = _loading("Drafting"), _loading("Hardware")
CACHE = _loading("Hardware", measuring=False)
SAMPLING = [
    *(replace(p, help=p.described(p.default)) for p in PARAMETERS.values() if p.flags),
    *table("Sampling",
        row("json_schema_file", "-jf --json-schema-file", str, "the schema of -j from a file", "FILE"),
        row("grammar_file", "--grammar-file", str, "the grammar from a file", "FILE"),
    ),
    *table("Sampling",
        row("sampling_seq", "--sampling-seq --sampler-seq", str,
            f"the sampling steps in their order, letters of {STEPS} (default {DEFAULT_STEPS})", "LETTERS",
            scope=Scope.PROJECT),
        stored=True,
    ),
    *_loading("Sampling"),
]
LOG = table("Output",
    row("verbose", "-v --verbose", bool, "show llama.cpp's log, and after `run` all figures"),
    row("log_file", "--log-file", str, "write llama.cpp's log to a file", "FILE"),
    row("debug", "--debug", bool, "show tracebacks"),
)
OUTPUT = [
    *table("Output",
        row("json", "--json", bool, "one JSON object on stdout instead of the text"),
        row("quiet", "-q --quiet", bool, "the answer alone; stderr has only warnings and errors"),
        row("compare", "--compare", bool, "decode again without drafts and compare"),
    ),
    *LOG,
]
CHATTING = table("Chat",
    row("system_prompt", "-sys --system-prompt", str, "the system message", "TEXT"),
    row("image", "--image", list, "an image for the first message; may be given several times", "FILE"),
    row("show_draft", "--show-draft", bool, "colour the text that came from a draft"),
    row("continued", "--continue", str,
        "go on with the last conversation, or with this one (specllama chats lists them)", "[NAME]", (CHATS,),
        bare=True),
    row("name", "--name", str, "the name of a new conversation (default: from its first question)", "NAME"),
    row("load", "--load", str, "go on with a conversation of a file, as /save writes it", "FILE"),
    row("tools", "--tools", str, "tools that the model may call, as JSON; you type the results", "FILE"),
)
CHATTING += table("Chat",
    row("no_save", "--no-save", bool, "do not save the conversation"),
    row("drop_oldest", "--drop-oldest", bool,
        "drop the oldest turns where the context is full, without asking"),
    row("no_history", "--no-history", bool, "do not keep typed lines for later chats"),
    stored=True,
)
SERVING = _loading("Server") + table("Server",
    row("host", "--host", str,
        f"the address to listen at (default {defaults.HOST}), others need a key; or unix:PATH", "ADDRESS"),
    row("port", "--port", int, f"the port (default {defaults.PORT}), 0 for any free one", "N"),
    row("queue", "--queue", int, f"texts that may wait for a slot (default {defaults.QUEUE}); 429 beyond",
        "N"),
    row("models_max", "--models-max", int,
        f"models in memory at once (default {defaults.MODELS_MAX}, 0 for as many as fit); without -m", "N"),
    row("idle_unload", "--idle-unload --sleep-idle-seconds", float,
        "unload a model that nobody has used for so many seconds (default 0: never)", "S"),
    row("alias", "-a --alias", list, "a name for the model; * accepts any name", "NAME"),
    row("strict_model", "--strict-model", bool, "refuse other names of models, with -m too"),
    row("allow_image_urls", "--allow-image-urls", bool,
        "read images of requests from http(s) addresses too, unless these are private"),
    row("root_path", "--root-path", str, "the path at which a proxy offers the server", "PATH"),
    row("api_key", "--api-key", list, "a key that clients must send; process lists show it", "KEY"),
    row("api_key_file", "--api-key-file", str, "a file with one such key per line", "FILE"),
    row("admin_key", "--admin-key", list,
        "a key that may also unload models (default: the first key); process lists show it", "KEY"),
    row("metrics_key", "--metrics-key", str,
        "a key for GET /metrics alone, with all keys' figures; process lists show it", "KEY"),
    row("open_metrics", "--open-metrics", bool, "show all keys' figures at GET /metrics without a key"),
    row("spm_infill", "--spm-infill", bool,
        "fill gaps from suffix, prefix, middle in this order, as some models were trained",
        scope=Scope.MODEL),
    row("share_cache", "--share-cache", bool,
        "reuse evaluated prompts across keys, which shows in the figures"),
    row("timeout", "--timeout", float,
        f"seconds that a request may take (default {defaults.TIMEOUT_SECONDS:g}, 0 for no limit)", "S"),
    row("drain", "--drain --drain-timeout", float,
        "seconds for running requests to end after SIGTERM or POST /drain "
        f"(default {defaults.DRAIN_SECONDS:g})", "S"),
    row("client_timeout", "--client-timeout", float,
        f"seconds for a client to send or to read (default {defaults.CLIENT_SECONDS:g})", "S"),
    row("allowed_host", "--allowed-host", list,
        "a name that is allowed in the Host header, besides those of this machine", "NAME"),
    row("allowed_origin", "--allowed-origin", list,
        "web pages from this origin may send requests: https://host:port, * for any part, * for all",
        "ORIGIN"),
    row("slot_save_path", "--slot-save-path", str,
        "a directory for slots that clients save with POST /slots/N?action=save", "DIR"),
    row("log_prompts", "--log-prompts", bool, "write the requests' prompts to the log"),
    stored=True,
)
_EMBEDDER = row("embeddings", "--embeddings --embedding", str,
    "an embedding model or a reranker, served too, or alone without -m: a file or a name", "MODEL", (GGUF,))
_POOLING = row("pooling", "--pooling", str,
    "how the embedding model makes one vector of a text (default: auto, as its file says)", "KIND", POOLINGS)
SERVING += table("Embeddings", _EMBEDDER, _POOLING, stored=True)
PAGE = table("Server", row("open", "--open", bool, "open the page in a browser"))
# fmt: on
_VLLM = {"draft_model": "--speculative-model", "draft_max": "--num-speculative-tokens"}


def _with_vllm_flags(options: Iterable[Option]) -> list[Option]:
    """The options with vLLM's spellings added, for servers."""
    return [replace(o, flags=(*o.flags, _VLLM[o.name])) if o.name in _VLLM else o for o in options]


_BARE = [o for o in SAMPLING if o.stored]  # of a server: schemas and grammars are given by its clients
RUN = [*PROMPT, *ESCAPES, *TEMPLATE, *MODELS, *IMAGES, *SAMPLING, *DRAFTING, *HARDWARE, *CACHE, *OUTPUT]
CHAT = [*CHATTING, *ESCAPES, *TEMPLATE, *MODELS, *IMAGES, *SAMPLING, *DRAFTING, *HARDWARE, *CACHE, *LOG]
SERVE = [
    *SERVING,
    *PAGE,
    *ESCAPES,
    *TEMPLATE,
    *_with_vllm_flags([*MODELS, *IMAGES, *_BARE, *DRAFTING, *HARDWARE, *CACHE]),
    *LOG,
]
# fmt: off
EMBED = [
    *table("Texts",
        row("words", "", list, "the texts, one each", "TEXT..."),
        row("file", "-f --file", str, "a file with a text on each line; - is standard input", "FILE"),
        row("query", "--query", str, "rank the texts as answers to this query, with a reranker", "TEXT"),
        row("dimensions", "--dimensions", int, "numbers of a vector, where the model was trained for fewer",
            "N"),
        row("truncate", "--truncate", bool, "cut texts that are too long, which otherwise are an error"),
    ),
    *table("Models",
        replace(_EMBEDDER, flags=("-m", "--model", *_EMBEDDER.flags), help="the embedding model or reranker: "
            "a GGUF file, a name (specllama models) or user/repo:QUANT"),
        _POOLING,
        stored=True,
    ),
    *MODELS_DIR,
    *(option for option in (*MODELS, *HARDWARE) if option.name in {"n_ctx", *_OF_EMBEDDERS}),
    *table("Output", row("json", "--json", bool, "one JSON object on stdout instead of a line a text")),
    *LOG,
]
OF_TEXTS = {option.name for option in SERVE} - {option.name for option in (*SERVING, *PAGE, *EMBED)}
_WORKLOADS = (LIST, "explain", "source", "json", "edit", "free")
BENCHING = table("Bench",
    row("prompts", "--prompts", str, "your own prompts: a JSON object, workload to list of prompts", "FILE"),
    row("text", "--text", str,
        "measure on a given text instead of the model's own: a text file, whose first quarter is the "
        "prompt, or *.json, workload to list of {prompt, text}", "FILE"),
    row("workloads", "--workloads", str, "workloads, separated by commas (default: all)", "NAMES",
        _WORKLOADS),
    row("n_tokens", "-n --predict --n-predict", int, "most tokens per answer (default 64; with --text: all)",
        "N"),
    row("runs", "--runs", int, "measurements of each answer (default 3)", "N"),
    row("lengths", "--k", str, "fixed draft lengths to measure (default 1,2,3,5,7,11,15)", "LIST"),
    row("without_kernels", "--without-kernels", bool,
        "also measure plain decoding with llama.cpp's own kernels, in a second engine"),
    row("temperatures", "--temp --temperature", str,
        "temperatures (default 0,0.8; with --text 0; with --server only one, 0)", "LIST"),
    row("report", "--report", str, "also write an HTML page with charts", "FILE"),
    row("json", "--json", bool, "one JSON object on stdout instead of the tables"),
)
ASKING = table("A server instead of a model",
    row("server", "--server", str, "measure this OpenAI-compatible server, with increasing concurrency",
        "URL"),
    row("concurrency", "--concurrency", str, "numbers of requests at once (default 1,2,4,8,16)", "LIST"),
    row("requests", "--requests", int,
        "requests at every concurrency (default: all prompts, the same number for each client)", "N"),
    row("timeout", "--timeout", float,
        "seconds that an answer may take (default 600); one that takes longer ends the benchmark", "S"),
    row("api_key", "--api-key", list, "the server's key; SPECLLAMA_API_KEY keeps it out of process lists",
        "KEY"),
    row("api_key_file", "--api-key-file", str, "a file with the key", "FILE"),
    row("raw", "--raw", bool, "use /v1/completions, without a chat template"),
    row("ignore_eos", "--ignore-eos", bool, "generate all -n tokens, if the server supports it"),
)
RPC_WORKER = table("Worker",
    row("host", "-H --host", str, "address to listen at (default 127.0.0.1, this machine only)", "ADDRESS"),
    row("port", "-p --port", int, "port (default 50052; 0 picks a free one)", "N"),
    row("n_threads", "-t --threads", int, "threads of the CPU (default: physical cores)", "N"),
    row("devices", "-d -dev --device", str, "devices to serve (default: all GPUs, or else the CPU)", "NAMES",
        ("none",)),
    row("memory", "--memory", float, "limit of the memory of each device that clients may use, in GB", "GB"),
    row("cache", "-c --cache", bool, "keep large tensors on disk, so that they are sent once"),
    row("json", "--json", bool, "print what is served as one JSON object on stdout"),
    row("verbose", "-v --verbose", bool, "show llama.cpp's log"),
    row("debug", "--debug", bool, "show tracebacks"),
)
TUNING = table("Tune",
    row("draft_models", "-md --model-draft --spec-draft-model", list,
        "a draft to compare: a GGUF file, auto or none; may be given several times", "FILE",
        (GGUF, "auto", "none")),
    row("prompts", "--prompts", str, "your own prompts: a JSON object, workload to list of prompts", "FILE"),
    row("workloads", "--workloads", str, "workloads, separated by commas (default: all)", "NAMES",
        _WORKLOADS),
    row("n_tokens", "-n --predict --n-predict", int,
        "tokens per text (default 64, or as many as there is time for)", "N"),
    row("no_store", "--no-store", bool, "show the measurements, store nothing"),
    row("ignore_load", "--ignore-load", bool,
        "store the figures and give advice even where other programs disturbed them"),
    row("json", "--json", bool, "one JSON object on stdout instead of the tables"),
)
# fmt: on
_BENCH_DECIDES = ("draft_max", "draft_min", "draft_p_min", "no_calibrate", "no_memory", "memory_from")
_TUNE_DECIDES = (*_BENCH_DECIDES, "draft_model", "exact")


def _model_of_bench(model: Option) -> list[Option]:
    """-m and --model as two options: with --server there is no -m, and --model is the server's model name."""
    if model.name != "model":
        return [model]
    help_ = "as -m; with --server the name of the server's model"
    return [
        replace(model, flags=("-m",)),
        replace(model, name="model_name", flags=("--model",), help=help_),
    ]


def _without(names: Sequence[str]) -> list[Option]:
    return [o for o in (*MODELS, *DRAFTING, *HARDWARE) if o.name not in names]


BENCH = [
    *BENCHING,
    *ASKING,
    *TEMPLATE,
    *(o for option in _without(_BENCH_DECIDES) for o in _model_of_bench(option)),
    *LOG,
]
TUNE = [*TUNING, *TEMPLATE, *_without(_TUNE_DECIDES), *LOG]
STORED: Mapping[str, Option] = {o.name: o for o in (*RUN, *CHATTING, *SERVING) if o.stored}
"""Options that files and the environment may set, by name."""
LONG_FLAGS: Mapping[str, str] = {
    name: o.name
    for o in STORED.values()
    for flag in o.flags
    if flag.startswith("--") and (name := flag[2:].replace("-", "_")) not in STORED
}
"""Other names of STORED in files and the environment: the long flags, as ctx_size for n_ctx."""
IN_PROJECTS = frozenset(o.name for o in STORED.values() if o.scope is Scope.PROJECT)
"""Those of STORED that a project's specllama.toml may set."""
OF_ONE_MODEL = frozenset(o.name for o in STORED.values() if o.scope is Scope.MODEL)
"""Those of STORED that make sense for one model alone: a server that has one of them loads no other model."""
_BY_NAME: Mapping[str, Option] = {o.name: o for o in (*RUN, *SERVING)}


def as_flag(name: str, value: str | None) -> str:
    """An option as the command line has it (errors.OptionNames): `-c 512`."""
    known = _BY_NAME.get(name)
    if known is not None and not known.flags:  # an argument without a flag
        return known.help.partition(",")[0]
    flag = known.flags[0] if known is not None else f"--{name.replace('_', '-')}"
    return flag if value is None else f"{flag} {value}"


def option_named(name: str) -> str:
    """The option that a name, or a long flag with or without its dashes, belongs to; "" for none."""
    plain = name.lstrip("-").replace("-", "_")
    return plain if plain in _BY_NAME else LONG_FLAGS.get(plain, "")


def as_argument(name: str, value: str | None) -> str:
    """An option as Python has it (errors.OptionNames): `max_model_len=512`."""
    known = _BY_NAME.get(name)
    argument = (known.argument if known is not None else "") or name
    if value is None:
        return argument
    return f"{argument}={value if value.isdigit() else None if value == 'none' else repr(value)}"

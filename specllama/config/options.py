"""The options of run, chat and serve: the table of flags, environment variables and TOML keys.

Spellings are llama.cpp's. Defaults are not here but in ModelSettings and LoadSettings (load.py),
SamplingParams (core/sampling/params.py) and the server's settings. The sampling options are generated from
SamplingParams. Knows no command line: cli/typer_options.py turns options into flags. The options of bench,
tune and rpc-worker are in options_measuring.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from specllama.config import defaults
from specllama.config.defaults import DRAFTERS
from specllama.config.load import CACHE_TYPES
from specllama.core.sampling.parameter import Parameter
from specllama.core.sampling.params import PARAMETERS

GGUF, DOWNLOADED, RUNNING, KEPT, CHATS = "*.gguf", "downloaded", "running", "kept", "chats"  # in `completes`
LIST = ","


@dataclass(frozen=True, slots=True)
class Option:
    """One option of a command.

    flags: () for a positional argument. kind: the type of its value. panel: its group in --help. many: may be
    given several times. stored: allowed in files and environment. completes: the completions of its value:
    words, GGUF for files and model names, DOWNLOADED for names of downloaded models, KEPT for prompts on disk
    and their models, CHATS for names of saved conversations, LIST first for a comma-separated list of the
    words; () leaves it to the shell, which completes file names. argument: its name in Python. bare: may
    stand without a value, which is then "".
    """

    name: str
    flags: tuple[str, ...]
    kind: type
    help: str
    panel: str = ""
    metavar: str | None = None
    many: bool = False
    stored: bool = True
    completes: tuple[str, ...] = ()
    argument: str = ""
    required: bool = False
    bare: bool = False


def row(
    name: str,
    flags: str,
    kind: type,
    text: str,
    metavar: str | None = None,
    completes: tuple[str, ...] = (),
    argument: str = "",
) -> Option:
    """One option of a table; the kind `list` means a text that may be given several times."""
    many = kind is list
    return Option(
        name, tuple(flags.split()), str if many else kind, text, "", metavar, many, True, completes, argument
    )


def table(panel: str, *rows: Option, stored: bool = True) -> list[Option]:
    """The options of one panel in --help."""
    return [replace(option, panel=panel, stored=stored) for option in rows]


PROMPT = table(
    "Prompt",
    row("words", "", list, "the prompt, as with -p", "PROMPT..."),
    row(
        "prompt",
        "-p --prompt",
        str,
        "the prompt; what is piped to standard input is appended to it",
        "TEXT",
    ),
    row("file", "-f --file", str, "a file with the prompt, or to append to it; - is standard input", "FILE"),
    row("system_prompt", "-sys --system-prompt", str, "the system message", "TEXT"),
    row(
        "raw",
        "--raw -no-cnv --no-conversation",
        bool,
        "use no chat template; control tokens in the prompt are parsed",
        argument="generate",  # a method
    ),
    stored=False,
)
ESCAPES = table(
    "Prompt",
    row("escape", "-e --escape", bool, r"process escapes as \n in -p and -r (default), and in -f too"),
    row("no_escape", "--no-escape", bool, "leave escapes in -p and -r as they are"),
    stored=False,
)
TEMPLATE = table(
    "Prompt",
    row(
        "chat_template",
        "--chat-template",
        str,
        "a Jinja template, or llama.cpp's name of one, instead of the model's own",
        "TEXT",
    ),
    row("chat_template_file", "--chat-template-file", str, "the same from a file", "FILE"),
    row(
        "tool_format",
        "--tool-format",
        str,
        "how the model writes tool calls: auto (by its template), or a format's name (docs/tools.md)",
        "NAME",
    ),
    row(
        "reasoning",
        "--reasoning",
        str,
        "on, off or auto: let the model think before it answers; auto: where its template can",
        "MODE",
        ("on", "off", "auto"),
    ),
)
MODELS = table(
    "Models",
    row(
        "model",
        "-m --model",
        str,
        "the target: a GGUF file, a name (specllama models) or user/repo:QUANT (default: the demo model)",
        "MODEL",
        (GGUF,),
    ),
    row("hf_repo", "-hf -hfr --hf-repo", str, "the target from the hub: user/repo[:QUANT]", "REPO"),
    row(
        "draft_model",
        "-md --model-draft --spec-draft-model",
        str,
        "the draft: as -m, auto (default: the known one if it is on disk) or none",
        "MODEL",
        (GGUF, "auto", "none"),
        "speculative_model",
    ),
    row(
        "hf_repo_draft",
        "-hfd -hfrd --hf-repo-draft",
        str,
        "the draft from the hub: user/repo[:QUANT]",
        "REPO",
    ),
    row("force", "--force", bool, "download a pair although its headers do not fit together"),
    row(
        "n_ctx",
        "-c --ctx-size",
        int,
        "context in tokens (default: the model's, at most 8192, as far as memory allows)",
        "N",
        argument="max_model_len",
    ),
    row(
        "n_ctx_draft",
        "-cd --ctx-size-draft --spec-draft-ctx-size",
        int,
        "context of the draft (default: -c)",
        "N",
    ),
    row("lora", "--lora", list, "a LoRA adapter for the target", "FILE", (GGUF,)),
    row("lora_scaled", "--lora-scaled", list, "FILE:SCALE, a LoRA adapter with a scale", "FILE:N", (GGUF,)),
    row("rope_scaling", "--rope-scaling", str, "none, linear or yarn", "KIND", ("none", "linear", "yarn")),
    row("rope_scale", "--rope-scale", float, "context scaling factor", "N"),
    row("rope_freq_base", "--rope-freq-base", float, "RoPE base frequency", "N"),
    row("rope_freq_scale", "--rope-freq-scale", float, "RoPE frequency scale", "N"),
    row("yarn_orig_ctx", "--yarn-orig-ctx", int, "YaRN: the original context", "N"),
    row("yarn_ext_factor", "--yarn-ext-factor", float, "YaRN: extrapolation mix", "N"),
    row("yarn_attn_factor", "--yarn-attn-factor", float, "YaRN: attention factor", "N"),
    row("yarn_beta_slow", "--yarn-beta-slow", float, "YaRN: high correction dimension", "N"),
    row("yarn_beta_fast", "--yarn-beta-fast", float, "YaRN: low correction dimension", "N"),
)
DRAFTING = table(
    "Drafting",
    row(
        "drafters",
        "--drafters",
        str,
        f"the drafters to use (default {','.join(DRAFTERS)}), or none",
        "NAMES",
        (LIST, *DRAFTERS, "none"),
    ),
    row(
        "draft_max",
        "--draft-max --draft --draft-n --spec-draft-n-max",
        str,
        "draft tokens per round; auto (default) decides by measured costs, 0 switches drafting off",
        "N",
        ("auto",),
        "num_speculative_tokens",
    ),
    row(
        "draft_vocab",
        "--draft-vocab",
        str,
        "a draft with another vocabulary: strict (default) refuses it, auto translates its tokens",
        "MODE",
        ("auto", "strict"),
    ),
    row(
        "draft_tree",
        "--draft-tree",
        str,
        "second candidates verified with a draft; auto (default) only where they cost nothing, off, or N",
        "N",
        ("auto", "off"),
    ),
    row(
        "draft_min",
        "--draft-min --draft-n-min --spec-draft-n-min",
        int,
        "do not verify drafts shorter than this",
        "N",
    ),
    row("draft_p_min", "--draft-p-min --spec-draft-p-min", float, "stop a draft below this confidence", "P"),
    row("exact", "--exact", bool, "the same text with and without drafts on every device, at a cost"),
    row(
        "exact_width",
        "--exact-width",
        int,
        "rows of every decode; implies --exact (default: measured once)",
        "N",
    ),
    row(
        "no_calibrate",
        "--no-calibrate",
        bool,
        "do not measure after the answer, and store nothing",
        argument="calibrate=False",
    ),
    row(
        "no_memory",
        "--no-memory",
        bool,
        "draft only from this request, not from earlier ones of the process",
        argument="memory=False",
    ),
)
HARDWARE = table(
    "Hardware",
    row("n_threads", "-t --threads", int, "threads (default: physical cores)", "N"),
    row("n_threads_batch", "-tb --threads-batch", int, "threads for batches (default: -t)", "N"),
    row("n_batch", "-b --batch-size", int, f"most tokens per decode (default {defaults.N_BATCH})", "N"),
    row("n_ubatch", "-ub --ubatch-size", int, f"tokens computed at once (default {defaults.N_UBATCH})", "N"),
    row(
        "n_gpu_layers",
        "-ngl --gpu-layers --n-gpu-layers",
        str,
        "layers on the GPU: a number, auto or all",
        "N",
        ("auto", "all"),
    ),
    row(
        "devices",
        "-dev --device",
        str,
        "devices, separated by commas; none for the CPU only",
        "NAMES",
        ("none",),
    ),
    row("tensor_split", "-ts --tensor-split", str, "share of each device, separated by commas", "A,B,..."),
    row(
        "split_mode",
        "-sm --split-mode",
        str,
        "how to split over devices: none, layer, row, tensor",
        "MODE",
        ("none", "layer", "row", "tensor"),
    ),
    row(
        "tensor_parallel_size",
        "--tensor-parallel-size",
        int,
        "vLLM's name for -sm layer over the first N GPUs",
        "N",
    ),
    row("main_gpu", "-mg --main-gpu", int, "the device for -sm none", "N"),
    row("rpc", "--rpc", str, "RPC workers for the target: host:port, separated by commas", "LIST"),
    row(
        "override_tensor",
        "-ot --override-tensor",
        list,
        "PATTERN=BUFFER: the buffer type of tensors with such a name",
        "P=B",
    ),
    row("cpu_moe", "-cmoe --cpu-moe", bool, "keep all experts on the CPU", argument="n_cpu_moe"),
    row("n_cpu_moe", "-ncmoe --n-cpu-moe", int, "keep the experts of the first N layers on the CPU", "N"),
    row(
        "cache_type_k", "-ctk --cache-type-k", str, "type of the K cache: f16, q8_0, ...", "TYPE", CACHE_TYPES
    ),
    row("cache_type_v", "-ctv --cache-type-v", str, "type of the V cache", "TYPE", CACHE_TYPES),
    row(
        "flash_attn",
        "-fa --flash-attn",
        str,
        "flash attention: on, off or auto",
        "MODE",
        ("on", "off", "auto"),
    ),
    row("no_mmap", "--no-mmap", bool, "read the file instead of mapping it", argument="use_mmap=False"),
    row("mlock", "--mlock", bool, "keep the model in memory", argument="use_mlock"),
    row("n_threads_draft", "-td --threads-draft", int, "threads of the draft (default: -t)", "N"),
    row("n_threads_batch_draft", "-tbd --threads-batch-draft", int, "threads for the draft's batches", "N"),
    row(
        "n_gpu_layers_draft",
        "-ngld --gpu-layers-draft --n-gpu-layers-draft --spec-draft-ngl",
        str,
        "layers of the draft on the GPU",
        "N",
        ("auto", "all"),
    ),
    row(
        "devices_draft",
        "-devd --device-draft --spec-draft-device",
        str,
        "devices of the draft",
        "NAMES",
        ("none",),
    ),
    row("override_tensor_draft", "-otd --override-tensor-draft", list, "PATTERN=BUFFER for the draft", "P=B"),
    row(
        "cpu_moe_draft",
        "-cmoed --cpu-moe-draft",
        bool,
        "keep all experts of the draft on the CPU",
        argument="n_cpu_moe_draft",
    ),
    row("n_cpu_moe_draft", "-ncmoed --n-cpu-moe-draft", int, "keep experts of the draft on the CPU", "N"),
    row(
        "cache_type_k_draft",
        "-ctkd --cache-type-k-draft",
        str,
        "type of the draft's K cache",
        "TYPE",
        CACHE_TYPES,
    ),
    row(
        "cache_type_v_draft",
        "-ctvd --cache-type-v-draft",
        str,
        "type of the draft's V cache",
        "TYPE",
        CACHE_TYPES,
    ),
)

CACHE = table(
    "Hardware",
    row(
        "cache_disk",
        "--cache-disk",
        str,
        "room on disk for evaluated prompts, as 8G or 500M; auto (default): 8G or a tenth of what is free, "
        "if that is less; 0 keeps none",
        "SIZE",
        ("auto", "0"),
    ),
    row(
        "cache_ram",
        "-cram --cache-ram",
        str,
        "memory for evaluated prompts that are not in use, as 8G, or a number of MiB; auto (default): a "
        "quarter of what is free; 0 keeps none, -1 is no limit",
        "SIZE",
        ("auto", "0"),
    ),
    row(
        "ctx_checkpoints",
        "-ctxcp --ctx-checkpoints --swa-checkpoints",
        int,
        "most states that are kept of a text of recurrent and hybrid models and sliding windows (default: as "
        "many as are worth their memory)",
        "N",
    ),
    row(
        "swa_full",
        "--swa-full",
        bool,
        "keep all cells of layers with a sliding window (default: those of the window, where texts stay the "
        "same)",
    ),
)


def _sampling(parameter: Parameter) -> Option:
    default = parameter.default
    shown = f"{default:g}" if isinstance(default, (int, float)) else ""
    text = parameter.help.replace("{default}", shown)
    named = (parameter.name, parameter.flags, parameter.kind, text, "Sampling", parameter.metavar)
    return Option(*named, many=parameter.many, stored=parameter.stored)


SAMPLING = [
    *map(_sampling, PARAMETERS.values()),
    *table(
        "Sampling",
        row("json_schema_file", "-jf --json-schema-file", str, "the schema of -j from a file", "FILE"),
        row("grammar_file", "--grammar-file", str, "the grammar from a file", "FILE"),
        stored=False,
    ),
    *table(
        "Sampling",
        row(
            "sampling_seq",
            "--sampling-seq --sampler-seq",
            str,
            "sampling steps to use, letters of ekpmit (default ekpmt)",
            "LETTERS",
        ),
        row(
            "schema_open", "--schema-open", bool, "objects may have properties that JSON schemas do not name"
        ),
    ),
]
LOG = table(
    "Output",
    row("verbose", "-v --verbose", bool, "show llama.cpp's log"),
    row("log_file", "--log-file", str, "write llama.cpp's log to a file", "FILE"),
    row("debug", "--debug", bool, "show tracebacks"),
    stored=False,
)
OUTPUT = [
    *table(
        "Output",
        row("json", "--json", bool, "one JSON object on stdout instead of the text"),
        row("quiet", "-q --quiet", bool, "the answer alone; stderr has only warnings and errors"),
        row("compare", "--compare", bool, "decode again without drafts and compare"),
        stored=False,
    ),
    *LOG,
]
CHATTING = table(
    "Chat",
    row("system_prompt", "-sys --system-prompt", str, "the system message", "TEXT"),
    row("show_draft", "--show-draft", bool, "colour the text that came from a draft"),
    replace(
        row(
            "continued",
            "--continue",
            str,
            "go on with the last conversation, or with this one (specllama chats lists them)",
            "[NAME]",
            (CHATS,),
        ),
        bare=True,
    ),
    row("name", "--name", str, "the name of a new conversation (default: from its first question)", "NAME"),
    row("load", "--load", str, "go on with a conversation of a file, as /save writes it", "FILE"),
    row("tools", "--tools", str, "tools that the model may call, as JSON; you type the results", "FILE"),
    stored=False,
)
CHATTING += table(
    "Chat",
    row("no_save", "--no-save", bool, "do not save the conversation"),
    row(
        "drop_oldest",
        "--drop-oldest",
        bool,
        "drop the oldest turns where the context is full, without asking",
    ),
    row("no_history", "--no-history", bool, "do not keep typed lines for later chats"),
)
SERVING = table(
    "Server",
    row(
        "host",
        "--host",
        str,
        f"the address to listen at (default {defaults.HOST}); others need a key",
        "ADDRESS",
    ),
    row("port", "--port", int, f"the port (default {defaults.PORT}), 0 for any free one", "N"),
    row(
        "n_slots",
        "-np --parallel",
        int,
        f"texts generated at once (default {defaults.SERVED_SLOTS})",
        "N",
        argument="max_num_seqs",
    ),
    row(
        "queue", "--queue", int, f"texts that may wait for a slot (default {defaults.QUEUE}); 429 beyond", "N"
    ),
    row(
        "models_max",
        "--models-max",
        int,
        f"models in memory at once (default {defaults.MODELS_MAX}, 0 for as many as fit); without -m",
        "N",
    ),
    row(
        "idle_unload",
        "--idle-unload --sleep-idle-seconds",
        float,
        "unload a model that nobody has used for so many seconds (default 0: never)",
        "S",
    ),
    row("alias", "-a --alias", list, "a name for the model; * accepts any name", "NAME"),
    row("strict_model", "--strict-model", bool, "refuse other names of models, with -m too"),
    row("root_path", "--root-path", str, "the path at which a proxy offers the server", "PATH"),
    row("api_key", "--api-key", list, "a key that clients must send; process lists show it", "KEY"),
    row("api_key_file", "--api-key-file", str, "a file with one such key per line", "FILE"),
    row(
        "admin_key",
        "--admin-key",
        list,
        "a key that may also unload models (default: the first key); process lists show it",
        "KEY",
    ),
    row(
        "metrics_key",
        "--metrics-key",
        str,
        "a key for GET /metrics alone, with all keys' figures; process lists show it",
        "KEY",
    ),
    row(
        "spm_infill",
        "--spm-infill",
        bool,
        "fill gaps from suffix, prefix, middle in this order, as some models were trained",
    ),
    row(
        "share_cache",
        "--share-cache",
        bool,
        "reuse evaluated prompts across keys, which shows in the figures",
    ),
    row(
        "timeout",
        "--timeout",
        float,
        f"seconds that a request may take (default {defaults.TIMEOUT_SECONDS:g}, 0 for no limit)",
        "S",
    ),
    row(
        "drain",
        "--drain",
        float,
        f"seconds for running requests to end after SIGTERM (default {defaults.DRAIN_SECONDS:g})",
        "S",
    ),
    row(
        "client_timeout",
        "--client-timeout",
        float,
        f"seconds for a client to send or to read (default {defaults.CLIENT_SECONDS:g})",
        "S",
    ),
    row(
        "allowed_host",
        "--allowed-host",
        list,
        "a name that is allowed in the Host header, besides those of this machine",
        "NAME",
    ),
    row(
        "allowed_origin",
        "--allowed-origin",
        list,
        "web pages from this origin may send requests: https://host:port, * for any part, * for all",
        "ORIGIN",
    ),
    row(
        "slot_save_path",
        "--slot-save-path",
        str,
        "a directory for slots that clients save with POST /slots/N?action=save",
        "DIR",
    ),
    row("log_prompts", "--log-prompts", bool, "write the requests' prompts to the log"),
)
PAGE = table("Server", row("open", "--open", bool, "open the page in a browser"), stored=False)
LOAD = [*MODELS, *DRAFTING, *HARDWARE]
_VLLM = {"draft_model": "--speculative-model", "draft_max": "--num-speculative-tokens"}


def _with_vllm_flags(options: Iterable[Option]) -> list[Option]:
    """The options with vLLM's spellings added, for servers."""
    return [replace(o, flags=(*o.flags, _VLLM[o.name])) if o.name in _VLLM else o for o in options]


_BARE = [o for o in SAMPLING if o.stored]  # of a server: schemas and grammars are given by its clients
RUN = [*PROMPT, *ESCAPES, *TEMPLATE, *MODELS, *SAMPLING, *DRAFTING, *HARDWARE, *CACHE, *OUTPUT]
CHAT = [*CHATTING, *ESCAPES, *TEMPLATE, *MODELS, *SAMPLING, *DRAFTING, *HARDWARE, *CACHE, *LOG]
SERVE = [
    *SERVING,
    *PAGE,
    *ESCAPES,
    *TEMPLATE,
    *_with_vllm_flags([*MODELS, *_BARE, *DRAFTING, *HARDWARE, *CACHE]),
    *LOG,
]
STORED: Mapping[str, Option] = {o.name: o for o in (*RUN, *CHATTING, *SERVING) if o.stored}
"""Options that files and the environment may set, by name."""
LONG_FLAGS: Mapping[str, str] = {
    name: o.name
    for o in STORED.values()
    for flag in o.flags
    if flag.startswith("--") and (name := flag[2:].replace("-", "_")) not in STORED
}
"""Other names of STORED in files and the environment: the long flags, as ctx_size for n_ctx."""
IN_PROJECTS = frozenset(
    (
        "max_tokens", "seed", "temperature", "top_k", "top_p", "min_p", "repeat_penalty",
        "repeat_last_n", "presence_penalty", "frequency_penalty", "logit_bias", "ignore_eos", "stop",
        "infill_sampling", "sampling_seq", "schema_open",
        "n_ctx", "n_ctx_draft",
        "n_threads", "n_threads_batch", "n_threads_draft", "n_threads_batch_draft",
        "n_gpu_layers", "n_gpu_layers_draft", "cpu_moe", "n_cpu_moe", "cpu_moe_draft",
        "n_cpu_moe_draft",
        "drafters", "draft_max", "draft_vocab", "draft_tree", "draft_min", "draft_p_min", "exact",
        "exact_width", "no_calibrate", "no_memory",
    )
)  # fmt: skip
"""Those of STORED that a project's specllama.toml may set, which anyone may have written: sampling, lengths,
threads, layers and drafting. None that names a file, a model, a host or a key, or opens the server further.
"""
USERS_ONLY = frozenset(
    (
        "model", "hf_repo", "draft_model", "hf_repo_draft", "force", "lora", "lora_scaled",
        "chat_template", "chat_template_file", "tool_format", "reasoning",
        "rope_scaling", "rope_scale", "rope_freq_base", "rope_freq_scale", "yarn_orig_ctx",
        "yarn_ext_factor", "yarn_attn_factor", "yarn_beta_slow", "yarn_beta_fast",
        "n_batch", "n_ubatch", "devices", "devices_draft", "tensor_split", "split_mode", "main_gpu",
        "tensor_parallel_size", "rpc", "override_tensor", "override_tensor_draft",
        "cache_type_k", "cache_type_v", "cache_type_k_draft", "cache_type_v_draft",
        "flash_attn", "no_mmap", "mlock",
        "host", "port", "n_slots", "queue", "alias", "api_key", "api_key_file", "timeout", "drain",
        "client_timeout", "allowed_host", "allowed_origin", "log_prompts", "no_history",
        "no_save", "drop_oldest", "share_cache", "spm_infill", "admin_key", "metrics_key", "models_max",
        "idle_unload", "strict_model", "root_path", "cache_disk", "cache_ram", "ctx_checkpoints", "swa_full",
        "slot_save_path",
    )
)  # fmt: skip
"""The others of STORED: each option is in one of the two sets."""
OF_ONE_MODEL = frozenset(
    (
        "model", "hf_repo", "draft_model", "hf_repo_draft", "lora", "lora_scaled",
        "chat_template", "chat_template_file", "tool_format", "spm_infill",
        "rope_scaling", "rope_scale", "rope_freq_base", "rope_freq_scale", "yarn_orig_ctx",
        "yarn_ext_factor", "yarn_attn_factor", "yarn_beta_slow", "yarn_beta_fast",
        "override_tensor", "override_tensor_draft",
    )
)  # fmt: skip
"""Those of STORED that make sense for one model alone: a server that has one of them loads no other model."""
_BY_NAME: Mapping[str, Option] = {o.name: o for o in (*RUN, *SERVING)}


def as_flag(name: str, value: str | None) -> str:
    """The spelling of an option on the command line (errors.Spelling): `-c 512`."""
    known = _BY_NAME.get(name)
    flag = known.flags[0] if known is not None else f"--{name.replace('_', '-')}"
    return flag if value is None else f"{flag} {value}"


def option_named(name: str) -> str:
    """The option that a name, or a long flag with or without its dashes, belongs to; "" for none."""
    plain = name.lstrip("-").replace("-", "_")
    return plain if plain in _BY_NAME else LONG_FLAGS.get(plain, "")


def as_argument(name: str, value: str | None) -> str:
    """The spelling of an option in Python (errors.Spelling): `max_model_len=512`."""
    known = _BY_NAME.get(name)
    argument = (known.argument if known is not None else "") or name
    if value is None:
        return argument
    return f"{argument}={value if value.isdigit() else None if value == 'none' else repr(value)}"

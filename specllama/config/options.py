"""The options of commands that load models: the table of flags, environment variables and TOML keys.

Spellings are llama.cpp's. Load options are generated from the settings classes (load.py), sampling options
from SamplingParams (core/sampling/params.py); the others stand in options.toml. Knows no command line:
cli/typer_options.py turns options into flags.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from specllama.config import defaults
from specllama.config.load import EMBEDDER_FIELDS, LOAD_SETTINGS, MODEL_SETTINGS, POOLINGS
from specllama.core.sampling.params import DEFAULT_STEPS, PARAMETERS, STEPS
from specllama.option import Option, Scope, tables
from specllama.regular_file import table_of

_SETTINGS = (*MODEL_SETTINGS.values(), *LOAD_SETTINGS.values())
_TABLES = table_of(__file__)
_WORDS = {name: f"{v:g}" if isinstance(v, float) else v for name, v in vars(defaults).items()}
_WORDS |= {"STEPS": STEPS, "DEFAULT_STEPS": DEFAULT_STEPS}


def _loading(panel: str, measuring: bool = True) -> list[Option]:
    """The load options of a panel, each followed by the draft's own. measuring: those of commands that
    measure, or else the others.
    """
    options = [o for s in _SETTINGS if s.measuring == measuring for o in (*s.options, *s.draft)]
    return [option for option in options if option.panel == panel]


def _table(name: str, stored: bool = False) -> list[Option]:
    return tables(_TABLES[name], _WORDS, stored)


_OF_EMBEDDERS = {option.name for name in EMBEDDER_FIELDS for option in MODEL_SETTINGS[name].options}
PROMPT, ESCAPES, PAGE = _table("prompt"), _table("escapes"), _table("page")
TEMPLATE = _loading("Prompt") + _table("template", stored=True)
MODELS_DIR = _table("models_dir")
MODELS = _table("models", stored=True) + MODELS_DIR + _loading("Models")
IMAGES = _loading("Images", measuring=False) + _table("images", stored=True)
DRAFTING, HARDWARE = _loading("Drafting"), _loading("Hardware")
CACHE = _loading("Hardware", measuring=False)
SAMPLING = [
    *(replace(p, help=p.described(p.default)) for p in PARAMETERS.values() if p.flags),
    *_table("structure"),
    *_table("sampling", stored=True),
    *_loading("Sampling"),
]
LOG = _table("log")
OUTPUT = _table("output") + LOG
CHATTING = _table("chat") + _table("chats", stored=True)
_EMBEDDINGS = [replace(o, completes=o.completes or POOLINGS) for o in _table("embeddings", stored=True)]
SERVING = _loading("Server") + _table("serve", stored=True) + _EMBEDDINGS
_VLLM = {"draft_model": "--speculative-model", "draft_max": "--num-speculative-tokens"}
_BARE = [o for o in SAMPLING if o.stored]  # of a server: schemas and grammars are given by its clients
RUN = [*PROMPT, *ESCAPES, *TEMPLATE, *MODELS, *IMAGES, *SAMPLING, *DRAFTING, *HARDWARE, *CACHE, *OUTPUT]
CHAT = [*CHATTING, *ESCAPES, *TEMPLATE, *MODELS, *IMAGES, *SAMPLING, *DRAFTING, *HARDWARE, *CACHE, *LOG]
SERVE = [
    *SERVING,
    *PAGE,
    *ESCAPES,
    *TEMPLATE,
    *(
        replace(o, flags=(*o.flags, _VLLM[o.name])) if o.name in _VLLM else o
        for o in (*MODELS, *IMAGES, *_BARE, *DRAFTING, *HARDWARE, *CACHE)
    ),
    *LOG,
]
EMBED = [
    *_table("embed"),
    *_table("embed_models", stored=True),
    *(replace(o, panel="Models") for o in _EMBEDDINGS if o.name == "pooling"),
    *MODELS_DIR,
    *(option for option in (*MODELS, *HARDWARE) if option.name in {"n_ctx", *_OF_EMBEDDERS}),
    *_table("embed_output"),
    *LOG,
]
OF_TEXTS = {option.name for option in SERVE} - {option.name for option in (*SERVING, *PAGE, *EMBED)}
BENCHING, ASKING, TUNING = _table("bench"), _table("bench_server"), _table("tune")
RPC_WORKER = _table("rpc_worker")
_BENCH_DECIDES = ("draft_max", "draft_min", "draft_p_min", "no_calibrate", "no_memory", "memory_from")
_TUNE_DECIDES = (*_BENCH_DECIDES, "draft_model", "exact")


def _model_of_bench(model: Option) -> list[Option]:
    """-m and --model as two options: with --server there is no -m, and --model is the server's model name."""
    if model.name != "model":
        return [model]
    help_ = "as -m; with --server the name of the server's model"
    return [replace(model, flags=("-m",)), replace(model, name="model_name", flags=("--model",), help=help_)]


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

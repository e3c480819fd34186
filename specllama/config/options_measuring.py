"""The options of `bench`, `tune` and `rpc-worker`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from specllama.config.option import GGUF, LIST, Option, row, table
from specllama.config.options import DRAFTING, HARDWARE, LOG, MODELS, TEMPLATE

_WORKLOADS = (LIST, "explain", "source", "json", "edit", "free")
BENCHING = table(
    "Bench",
    row("prompts", "--prompts", str, "your own prompts: a JSON object, workload to list of prompts", "FILE"),
    row(
        "text",
        "--text",
        str,
        "measure on a given text instead of the model's own: a text file, whose first quarter is the prompt, "
        "or *.json, workload to list of {prompt, text}",
        "FILE",
    ),
    row(
        "workloads",
        "--workloads",
        str,
        "workloads, separated by commas (default: all)",
        "NAMES",
        _WORKLOADS,
    ),
    row(
        "n_tokens",
        "-n --predict --n-predict",
        int,
        "most tokens per answer (default 64; with --text: all)",
        "N",
    ),
    row("runs", "--runs", int, "measurements of each answer (default 3)", "N"),
    row("lengths", "--k", str, "fixed draft lengths to measure (default 1,2,3,5,7,11,15)", "LIST"),
    row(
        "without_kernels",
        "--without-kernels",
        bool,
        "also measure plain decoding with llama.cpp's own kernels, in a second engine",
    ),
    row(
        "temperatures",
        "--temp --temperature",
        str,
        "temperatures (default 0,0.8; with --text 0; with --server only one, 0)",
        "LIST",
    ),
    row("report", "--report", str, "also write an HTML page with charts", "FILE"),
    row("json", "--json", bool, "one JSON object on stdout instead of the tables"),
    stored=False,
)
ASKING = table(
    "A server instead of a model",
    row(
        "server",
        "--server",
        str,
        "measure this OpenAI-compatible server, with increasing concurrency",
        "URL",
    ),
    row("concurrency", "--concurrency", str, "numbers of requests at once (default 1,2,4,8,16)", "LIST"),
    row(
        "requests",
        "--requests",
        int,
        "requests at every concurrency (default: all prompts, the same number for each client)",
        "N",
    ),
    row(
        "timeout",
        "--timeout",
        float,
        "seconds that an answer may take (default 600); one that takes longer ends the benchmark",
        "S",
    ),
    row(
        "api_key",
        "--api-key",
        list,
        "the server's key; SPECLLAMA_API_KEY keeps it out of process lists",
        "KEY",
    ),
    row("api_key_file", "--api-key-file", str, "a file with the key", "FILE"),
    row("raw", "--raw", bool, "use /v1/completions, without a chat template"),
    row("ignore_eos", "--ignore-eos", bool, "generate all -n tokens, if the server supports it"),
    stored=False,
)
RPC_WORKER = table(
    "Worker",
    row("host", "-H --host", str, "address to listen at (default 127.0.0.1, this machine only)", "ADDRESS"),
    row("port", "-p --port", int, "port (default 50052; 0 picks a free one)", "N"),
    row("n_threads", "-t --threads", int, "threads of the CPU (default: physical cores)", "N"),
    row(
        "devices",
        "-d -dev --device",
        str,
        "devices to serve (default: all GPUs, or else the CPU)",
        "NAMES",
        ("none",),
    ),
    row("memory", "--memory", float, "limit of the memory of each device that clients may use, in GB", "GB"),
    row("cache", "-c --cache", bool, "keep large tensors on disk, so that they are sent once"),
    row("json", "--json", bool, "print what is served as one JSON object on stdout"),
    row("verbose", "-v --verbose", bool, "show llama.cpp's log"),
    row("debug", "--debug", bool, "show tracebacks"),
    stored=False,
)
TUNING = table(
    "Tune",
    row(
        "draft_models",
        "-md --model-draft --spec-draft-model",
        list,
        "a draft to compare: a GGUF file, auto or none; may be given several times",
        "FILE",
        (GGUF, "auto", "none"),
    ),
    row("prompts", "--prompts", str, "your own prompts: a JSON object, workload to list of prompts", "FILE"),
    row(
        "workloads",
        "--workloads",
        str,
        "workloads, separated by commas (default: all)",
        "NAMES",
        _WORKLOADS,
    ),
    row(
        "n_tokens",
        "-n --predict --n-predict",
        int,
        "tokens per text (default 64, or as many as there is time for)",
        "N",
    ),
    row("no_store", "--no-store", bool, "show the measurements, store nothing"),
    row(
        "ignore_load",
        "--ignore-load",
        bool,
        "store the figures and give advice even where other programs disturbed them",
    ),
    row("json", "--json", bool, "one JSON object on stdout instead of the tables"),
    stored=False,
)
_BENCH_DECIDES = ("draft_max", "draft_min", "draft_p_min", "no_calibrate", "no_memory")
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

"""The options of `bench`, `tune` and `rpc-worker`."""

from __future__ import annotations

from dataclasses import replace

from specllama.config.options import DRAFT, MODEL, TEMPLATE, Option, table

BENCHING = table(
    "Bench",
    ("prompts", "--prompts", str, "own prompts: a JSON object, workload to list of prompts", "FILE"),
    (
        "text",
        "--text",
        str,
        "measure on a given text, not on what the model would write: a text file, whose first quarter is the "
        "prompt, or *.json, workload to list of {prompt, text}",
        "FILE",
    ),
    ("workloads", "--workloads", str, "those of the workloads, separated by commas (default: all)", "NAMES"),
    ("n_tokens", "-n --predict --n-predict", int, "most tokens of an answer (default 64; a text: all)", "N"),
    ("runs", "--runs", int, "how often each answer is measured (default 3)", "N"),
    ("lengths", "--k", str, "fixed draft lengths to measure (default 1,2,3,5,7,11,15)", "LIST"),
    (
        "temperatures",
        "--temp --temperature",
        str,
        "temperatures (default 0,0.8; 0 with --text; --server takes one, 0)",
        "LIST",
    ),
    ("report", "--report", str, "also write an HTML page with charts", "FILE"),
    ("json", "--json", bool, "one JSON object on stdout instead of the tables"),
    ("verbose", "-v --verbose", bool, "show llama.cpp's log"),
    ("log_file", "--log-file", str, "write llama.cpp's log to a file", "FILE"),
    ("debug", "--debug", bool, "show tracebacks"),
    stored=False,
)
ASKING = table(
    "A server instead of a model",
    (
        "server",
        "--server",
        str,
        "measure this OpenAI-compatible server, with more and more requests at once",
        "URL",
    ),
    ("concurrency", "--concurrency", str, "so many requests at once (default 1,2,4,8,16)", "LIST"),
    (
        "requests",
        "--requests",
        int,
        "requests at every concurrency (default: all prompts, and enough that all clients have as many)",
        "N",
    ),
    (
        "timeout",
        "--timeout",
        float,
        "seconds that an answer may take (default 600); one that takes longer ends the bench",
        "S",
    ),
    ("api_key", "--api-key", list, "the server's key; SPECLLAMA_API_KEY shows it to nobody", "KEY"),
    ("api_key_file", "--api-key-file", str, "a file with the key", "FILE"),
    ("raw", "--raw", bool, "ask /v1/completions, without a chat template"),
    ("ignore_eos", "--ignore-eos", bool, "ask for -n tokens in any case, where the server knows how"),
    stored=False,
)
RPC_WORKER = table(
    "Worker",
    ("host", "-H --host", str, "address to listen at (default 127.0.0.1, this machine alone)", "ADDRESS"),
    ("port", "-p --port", int, "port (default 50052; 0 picks a free one)", "N"),
    ("n_threads", "-t --threads", int, "threads of the CPU (default: physical cores)", "N"),
    ("devices", "-d -dev --device", str, "devices to offer (default: all GPUs, or else the CPU)", "NAMES"),
    ("memory", "--memory", float, "most memory that clients are told of, of each device, in GB", "GB"),
    ("cache", "-c --cache", bool, "keep large tensors on disk, so that they are sent once"),
    ("json", "--json", bool, "say what is served as one JSON object on stdout"),
    ("verbose", "-v --verbose", bool, "show llama.cpp's log"),
    ("debug", "--debug", bool, "show tracebacks"),
    stored=False,
)
TUNING = table(
    "Tune",
    (
        "draft_models",
        "-md --model-draft --spec-draft-model",
        list,
        "a draft to compare: a GGUF file, auto or none; may be given several times",
        "FILE",
    ),
    ("prompts", "--prompts", str, "own prompts: a JSON object, workload to list of prompts", "FILE"),
    ("workloads", "--workloads", str, "those of the workloads, separated by commas (default: all)", "NAMES"),
    (
        "n_tokens",
        "-n --predict --n-predict",
        int,
        "tokens of a text (default 64, or what there is time for)",
        "N",
    ),
    ("no_store", "--no-store", bool, "show what was measured, store nothing"),
    ("json", "--json", bool, "one JSON object on stdout instead of the tables"),
    ("verbose", "-v --verbose", bool, "show llama.cpp's log"),
    ("log_file", "--log-file", str, "write llama.cpp's log to a file", "FILE"),
    ("debug", "--debug", bool, "show tracebacks"),
    stored=False,
)
_BENCH_DECIDES = ("draft_max", "draft_min", "draft_p_min", "no_calibrate", "no_memory")
_TUNE_DECIDES = (*_BENCH_DECIDES, "draft_model", "exact")


def _bench_model() -> list[Option]:
    """-m and --model apart: with --server the one has no meaning, the other is the model's name there."""
    model = next(o for o in MODEL if o.name == "model")
    named = replace(
        model,
        name="model_name",
        flags=("--model",),
        help="as -m; with --server the server's name for its model",
    )
    return [replace(model, flags=("-m",)), named, *(o for o in MODEL if o is not model)]


BENCH = [
    *BENCHING,
    *ASKING,
    *TEMPLATE,
    *_bench_model(),
    *(o for o in DRAFT if o.name not in _BENCH_DECIDES),
]
TUNE = [*TUNING, *TEMPLATE, *MODEL, *(o for o in DRAFT if o.name not in _TUNE_DECIDES)]

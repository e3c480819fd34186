"""Flags of llama.cpp's programs that the commands do not have: left out with a note where that changes
nothing, else refused with what to use instead.

Knows no command's options; unknown flags that are in no list are refused by Typer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from specllama.errors import UsageError

if TYPE_CHECKING:
    from specllama.option import Option

COMMANDS = ("run", "chat", "serve")
# Flags that change neither texts nor speed here, and how many values each takes.
_ALONE = """
--display-prompt --no-display-prompt --perf --no-perf --show-timings --no-show-timings --warmup --no-warmup
-st --single-turn --jinja -cb --cont-batching -kvu --kv-unified --no-context-shift --no-mmproj
--no-mmproj-auto --cache-prompt --metrics --props --slots --repack -kvo --kv-offload --op-offload
--log-disable --log-prefix --log-timestamps --mmap --simple-io
"""
_WITH_VALUE = "-co --color --log-colors -lv --verbosity --log-verbosity"
_WITHOUT_EFFECT: Mapping[str, int] = {
    **dict.fromkeys(_ALONE.split(), 0),
    **dict.fromkeys(_WITH_VALUE.split(), 1),
}
_OPTIONAL = {"-co": ("on", "off", "auto"), "--color": ("on", "off", "auto")}  # values that may be missing
# What to use in place of flags that there are not: flags, and a sentence.
_INSTEAD = """
-cnv --conversation -i --interactive -if --interactive-first: specllama chat is the interactive command
-mli --multiline-input: specllama chat is the interactive command; \"\"\" begins and ends several lines \
there
-sysf --system-prompt-file: -sys "$(cat FILE)" gives the text of a file
-hff --hf-file: -m user/repo/FILE.gguf names a file of a repository
-mu --model-url: -m takes the URL of a file on the hub
-dr --docker-repo: -m takes names of the hub, user/repo:QUANT, and files
-hft --hf-token: the variable HF_TOKEN has the token
--offline: the variable HF_HUB_OFFLINE=1 keeps it from asking the hub
-cl --cache-list: specllama models lists what is on this disk
--no-jinja: --chat-template NAME takes llama.cpp's name of a template
--chat-template-kwargs --reasoning-effort: requests to serve have chat_template_kwargs; --reasoning is the \
flag
--reasoning-format: reasoning comes apart from the answer; --reasoning says whether the model thinks
--reasoning-preserve --no-reasoning-preserve: what stays of earlier reasoning is up to the model's template
--context-shift --keep: a text ends where the context is full; -c makes it larger, chat --drop-oldest goes \
on
-gan --grp-attn-n -gaw --grp-attn-w: a text ends where the context is full; -c makes it larger
-bs --backend-sampling: tokens are chosen on the CPU, so that they are the same with drafts and without
-lm --load-mode -dio --direct-io: --no-mmap and --mlock are the options for that
--prompt-cache --prompt-cache-all --prompt-cache-ro: evaluated prompts are kept on disk (--cache-disk)
--no-cache-prompt --cache-reuse --cache-idle-slots --no-cache-idle-slots: evaluated prompts are reused \
where that changes no token; --cache-ram and --cache-disk limit what is kept
--list-devices: specllama doctor lists them
-mm --mmproj -mmu --mmproj-url --mmproj-auto --mmproj-offload --no-mmproj-offload --image --audio --video: \
images and sound are not supported; without the projector the model answers text
--image-min-tokens --image-max-tokens --media-path: images are not supported
--in-prefix --in-prefix-bos --in-suffix: the chat template has what goes around messages; \
--chat-template-file gives another one
--verbose-prompt: -v shows how many tokens the prompt has, /tokenize of serve which
-sp --special: control tokens are no part of an answer; the --json of run has the ids of all tokens
--embedding --embeddings --pooling --attention: specllama embed -m MODEL makes vectors, and specllama serve \
--embeddings MODEL serves them
--embd-normalize: vectors have the length 1; a request says otherwise with embd_normalize
--rerank --reranking: specllama serve --embeddings MODEL serves a reranker too, and specllama embed --query \
ranks
-lcs --lookup-cache-static -lcd --lookup-cache-dynamic: copies are drafted from the prompt, the answer and \
earlier requests by themselves (--drafters copy)
--spec-type --spec-default: --drafters model,copy,grammar says what drafts
--spec-draft-p-split --draft-p-split: --draft-tree N drafts second candidates
--override-kv: the file is read as it is; --chat-template and --rope-scaling change what they name
--control-vector --control-vector-scaled --control-vector-layer-range: control vectors are not supported; \
--lora is
-nkvo --no-kv-offload --no-op-offload -nr --no-repack --no-host: -ngl 0 keeps everything on the CPU
-ncffn --n-cpu-ffn --moe-cache-mib: -ot and --n-cpu-moe say which weights stay on the CPU
-fit --fit -fitt --fit-target -fitc --fit-ctx: layers and context fit into memory by themselves; -ngl and \
-c set them
-C --cpu-mask -Cr --cpu-range --cpu-strict -Cb --cpu-mask-batch -Crb --cpu-range-batch --cpu-strict-batch: \
taskset chooses the processors, and -t the number of threads
--prio --prio-batch --poll --poll-batch --numa: nice, taskset and numactl set that from outside
-dt --defrag-thold -cms --checkpoint-min-step -lzm --lazy-mode --check-tensors: there is nothing to set for \
that here
-nocb --no-cont-batching -no-kvu --no-kv-unified: -np 1 answers one request at a time
--path --no-ui --no-webui --ui-config --webui-config --ui-config-file --webui-config-file: the page is part \
of serve
--api-prefix: --root-path says where a proxy offers the server
--cors-origins --cors-methods --cors-headers --cors-credentials --no-cors-credentials: --allowed-origin is \
the option
--ssl-key-file --ssl-cert-file: put a proxy with TLS before it (see --root-path)
-to --threads-http --sse-ping-interval --reuse-port: --timeout and --client-timeout are the limits of serve
--models-preset: models.toml names models (docs/models.md)
--max-tokens --max-new-tokens: -n is the limit
--no-models-autoload --no-slots: leave it out; API keys say who may ask
-ag --agent --mcp-servers-config --mcp-servers-json --tools-runtime: serve runs no tools; specllama launch \
starts agents
--lora-init-without-apply --lora-base: --lora and --lora-scaled apply adapters at the start
"""
_HINTS: Mapping[str, str] = {
    flag: hint
    for line in _INSTEAD.strip().splitlines()
    for flags, _, hint in (line.partition(": "),)
    for flag in flags.split()
}
_NEGATIVE = re.compile(r"-[0-9.]+")
_OF_CHAT = ("-cnv", "--conversation", "-i", "--interactive", "-if", "--interactive-first")


def without_them(arguments: Sequence[str], options: Iterable[Option]) -> tuple[list[str], list[str]]:
    """(The arguments of a command without flags that have no effect, those flags). The first argument is the
    command. A flag that stands without a value gets an empty one. Raises UsageError for flags that have a
    substitute, and for a flag whose words are missing.
    """
    by_flag = {flag: o for o in options for flag in o.flags}
    kept, dropped = list[str](), list[str]()
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        if argument == "--":
            return [*kept, argument, *rest], dropped
        if (option := by_flag.get(argument)) is not None:
            if option.bare and (not rest or rest[0].startswith("-")):
                kept.append(f"{argument}=")
                continue
            kept.append(argument)
            if option.kind is not bool:
                _check_value(argument, option, rest)
                kept += rest[:1]
                del rest[:1]
        elif arguments[0] not in COMMANDS:
            kept.append(argument)
        elif argument in _WITHOUT_EFFECT or (arguments[0] == "chat" and argument in _OF_CHAT):
            dropped.append(argument)
            n = _WITHOUT_EFFECT.get(argument, 0)
            if argument not in _OPTIONAL or (rest[:1] and rest[0] in _OPTIONAL[argument]):
                del rest[:n]
        elif (flag := argument.partition("=")[0]) in _HINTS:
            raise UsageError(f"no such option: {flag}", _HINTS[flag])
        else:
            kept.append(argument)
    return kept, dropped


def _check_value(flag: str, option: Option, rest: Sequence[str]) -> None:
    """Raises UsageError for a flag without its value, one of some words; a negative number is a value."""
    if option.values and (not rest or (rest[0].startswith("-") and not _NEGATIVE.fullmatch(rest[0]))):
        raise UsageError(f"{flag} needs a value: {option.values}")

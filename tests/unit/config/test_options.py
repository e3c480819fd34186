"""The table of options, from which all fronts get names, kinds and help."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from specllama.config import options
from specllama.config.options import OF_ONE_MODEL, STORED, as_argument, as_flag
from specllama.core.sampling.params import PARAMETERS
from specllama.errors import SpecllamaError, UsageError, option, with_option_names
from specllama.option import Option, Scope

TABLES = {
    "run": options.RUN,
    "chat": options.CHAT,
    "serve": options.SERVE,
    "bench": options.BENCH,
    "tune": options.TUNE,
    "rpc-worker": options.RPC_WORKER,
}


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_names_and_flags_are_unique(table: list[Option]) -> None:
    assert [name for name, n in Counter(o.name for o in table).items() if n > 1] == []
    assert [flag for flag, n in Counter(flag for o in table for flag in o.flags).items() if n > 1] == []
    assert all(o.panel and o.help and (o.flags or o.name == "words") for o in table)


def test_long_flags_name_one_option_each() -> None:
    assert options.LONG_FLAGS["ctx_size"] == "n_ctx"
    assert not set(options.LONG_FLAGS) & set(STORED)
    assert set(options.LONG_FLAGS.values()) <= set(STORED)
    for typed in ("--ctx-size", "ctx_size", "n_ctx"):
        assert options.option_named(typed) == "n_ctx"
    assert options.option_named("modle") == ""
    assert options.as_flag("words", None) == "the prompt"
    assert options.as_flag("n_ctx", "512") == "-c 512"


def test_every_sampling_parameter_is_an_option() -> None:
    by_name = {o.name: o for o in options.RUN}
    for name, parameter in PARAMETERS.items():
        if not parameter.flags:
            assert name not in by_name
            continue
        assert by_name[name].flags == parameter.flags
        assert (name in STORED) == parameter.stored
    assert "(default 0.8)" in by_name["temperature"].help
    assert not any("{" in o.help for o in options.RUN)


def test_a_projects_file_may_set_what_its_table_says() -> None:
    """Files of strangers may set an option that says so in its table, and nothing that these words name."""
    allowed = {name for name, entry in STORED.items() if entry.scope is Scope.PROJECT}
    assert set(STORED) > allowed > set()
    assert not allowed & options.OF_ONE_MODEL
    words = "file|model|repo|lora|template|host|port|rpc|key|origin|alias|device|force|tensor|log_p"
    assert {name for name in allowed if re.search(words, name)} == set()


def test_run_has_these_panels() -> None:
    panels = list(dict.fromkeys(o.panel for o in options.RUN))
    assert panels == ["Prompt", "Models", "Images", "Sampling", "Drafting", "Hardware", "Output"]


def test_options_are_spelled_for_each_front() -> None:
    text = f"{option('n_ctx', 512)} or {option('draft_model', 'none')} or {option('raw')}"
    assert with_option_names(text, as_flag) == "-c 512 or -md none or --raw"
    assert with_option_names(text, as_argument) == "max_model_len=512 or speculative_model=None or generate"
    assert as_flag("allowed_host", None) == "--allowed-host"
    assert as_flag("some_option", None) == "--some-option"
    assert as_argument("flash_attn", "off") == "flash_attn='off'"
    assert with_option_names("no reference: \ue000, n_ctx", as_flag) == "no reference: \ue000, n_ctx"


def test_an_error_keeps_its_option_as_plain_data() -> None:
    error = UsageError("must be less", f"use {option('n_ctx', 5)}", {"n": 1}, option="n_ctx_draft")
    assert (error.message, error.hint) == ("n_ctx_draft must be less", "use n_ctx=5")
    again = SpecllamaError.from_dict(error.to_dict())
    assert (type(again), again.option, again.details) == (UsageError, "n_ctx_draft", {"n": 1})
    flags = again.with_option_names(as_flag).prefixed("prompt 1: ")
    assert (flags.message, flags.hint) == ("prompt 1: -cd must be less", "use -c 5")
    assert str(again) == "n_ctx_draft must be less\nuse n_ctx=5", "the original is unchanged"
    assert again.renamed("n_ctx").message == "n_ctx must be less"


def test_options_of_one_model_exist() -> None:
    assert set(STORED) >= OF_ONE_MODEL
    rope = {name for name in STORED if name.startswith(("rope_", "yarn_"))}
    assert rope < OF_ONE_MODEL

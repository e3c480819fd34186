"""Invalid draft settings, given in every possible way: exit code 2 and a one-line error."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specllama import LLM
from specllama.client import protocol
from specllama.client.client import EngineClient
from specllama.config.load import LoadSettings, ModelSettings
from specllama.config.options import as_flag
from specllama.data import EMBEDDED_TARGET
from specllama.errors import UsageError
from tests.support.command import Command, CommandLine, assert_error
from tests.support.generations import generate

HUGE = "9" * 40
RANGE = "must be a whole number from 0"
P_RANGE = "{draft_p_min} must be a number from 0 to 1, not "
# Values as in a file, and a part of the error: {name} stands for an option, the first one is at fault.
BAD: list[tuple[dict[str, Any], str]] = [
    ({"draft_max": 3, "draft_min": 4}, "{draft_min} 4 is more than {draft_max} 3"),
    ({"draft_max": -1}, "{draft_max} " + RANGE),
    ({"draft_max": 1.5}, "{draft_max} " + RANGE),
    ({"draft_max": 513}, "{draft_max} must be a whole number from 0 to 512, not 513"),
    ({"draft_max": int(HUGE)}, "{draft_max} " + RANGE),
    ({"draft_max": "nan"}, "{draft_max} must be a whole number from 0 or auto, not 'nan'"),
    ({"draft_max": ""}, "{draft_max} " + RANGE),
    ({"draft_min": -1}, "{draft_min} must be a whole number from 0 to 512, not -1"),
    ({"draft_min": 513}, "{draft_min} must be a whole number from 0 to 512, not 513"),
    ({"draft_min": int(HUGE)}, "{draft_min} " + RANGE),
    ({"draft_p_min": -0.1}, P_RANGE + "-0.1"),
    ({"draft_p_min": 1.5}, P_RANGE + "1.5"),
    ({"draft_p_min": float("nan")}, P_RANGE + "nan"),
    ({"draft_p_min": float("inf")}, P_RANGE + "inf"),
    ({"draft_p_min": float("-inf")}, P_RANGE + "-inf"),
]
NOT_NUMBERS: list[tuple[dict[str, Any], str]] = [
    ({"draft_min": "few"}, "few"),
    ({"draft_min": "1.5"}, "1.5"),
    ({"draft_p_min": "half"}, "half"),
]


def place_in_file(path: Path, keys: list[str], option: str) -> str:
    return f"{path}, line {keys.index(option) + 1}: {option.replace('_', '-')}"


def expected(needle: str, at_fault: Callable[[str], str]) -> str:
    """The expected part of an error, with options as flags, except the one at fault."""
    first = re.search(r"{(\w+)}", needle)
    if first is None:
        return needle
    rest = re.sub(r"{(\w+)}", lambda found: as_flag(found[1], None), needle[first.end() :])
    return needle[: first.start()] + at_fault(first[1]) + rest


def test_rejects_flags(shared: Command) -> None:
    given = [*BAD, *((values, f"Invalid value for '--{name(values)}'") for values, _ in NOT_NUMBERS)]
    lines = [[f"--{key.replace('_', '-')}={value}" for key, value in values.items()] for values, _ in given]
    results = shared.batch(*(CommandLine(("run", "-p", "zip", *flags)) for flags in lines))
    for (_, needle), result in zip(given, results, strict=True):
        assert_error(result, 2, expected(needle, lambda option: as_flag(option, None)))


def name(values: dict[str, Any]) -> str:
    """The first option as in a flag or key."""
    return next(iter(values)).replace("_", "-")


def test_rejects_environment_variables(shared: Command) -> None:
    given = [one for one in (*BAD, *NOT_NUMBERS) if "" not in one[0].values()]  # empty ones are not set
    envs = [{f"SPECLLAMA_{key.upper()}": str(x) for key, x in values.items()} for values, _ in given]
    results = shared.batch(*(CommandLine(("run", "-p", "zip"), env) for env in envs))
    for (values, needle), env, result in zip(given, envs, results, strict=True):
        assert_error(result, 2, expected(needle, lambda option: f"SPECLLAMA_{option.upper()}"))
        if (values, needle) in NOT_NUMBERS:
            assert f"{next(iter(env))} must be a " in result.err


@pytest.mark.parametrize("user", [False, True])
def test_rejects_values_in_files(command: Command, user: bool) -> None:
    """The project's specllama.toml and the user's config.toml."""
    places = Path("config/specllama/config.toml") if user else Path("specllama.toml")
    wrong_kind: list[tuple[dict[str, Any], str]] = [
        ({"draft_max": True}, "a number or auto, not True"),
        ({"draft_min": True}, "a whole number, not True"),
        ({"draft_min": 1.0}, "a whole number, not 1.0"),
        ({"draft_p_min": True}, "a number, not True"),
        ({"draft_p_min": [0.5]}, "a number, not [0.5]"),
        *NOT_NUMBERS,
    ]
    cases = [BAD[0], wrong_kind[0]] if user else [*BAD, *wrong_kind]
    paths, lines = [], []
    for i, (values, _) in enumerate(cases):
        home = command.home / str(i)
        paths.append(home / places)
        paths[-1].parent.mkdir(parents=True)
        paths[-1].write_text("".join(f"{key.replace('_', '-')} = {toml(x)}\n" for key, x in values.items()))
        env = {"XDG_CONFIG_HOME": str(home / "config"), "HOME": str(home)}
        lines.append(CommandLine(("run", "-p", "zip"), env, home))
    for (values, needle), path, result in zip(cases, paths, command.batch(*lines), strict=True):
        assert_error(result, 2, expected(needle, functools.partial(place_in_file, path, list(values))))
        if (values, needle) in wrong_kind:
            assert f"{path}, line 1: {name(values)} must be a" in result.err
    path = command.home / places
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("draft-min = 4\n")
    message = f"{path}, line 1: draft-min 4 is more than --draft-max 3"
    assert_error(command("run", "-p", "zip", "--draft-max", "3"), 2, message)
    assert command("run", "-p", "zip", "-n", "3", "--no-calibrate", "--draft-max", "0").code == 0


def toml(value: Any) -> str:
    return str(value) if isinstance(value, float) else json.dumps(value)


PYTHON: list[tuple[dict[str, Any], str]] = [
    ({"num_speculative_tokens": 3, "draft_min": 4}, "draft_min 4 is more than num_speculative_tokens 3"),
    ({"num_speculative_tokens": -1}, "num_speculative_tokens must be"),
    ({"num_speculative_tokens": 1.5}, "num_speculative_tokens must be"),
    ({"num_speculative_tokens": float("nan")}, "num_speculative_tokens must be"),
    ({"num_speculative_tokens": 513}, "num_speculative_tokens must be"),
    ({"num_speculative_tokens": "7"}, "num_speculative_tokens must be"),
    ({"num_speculative_tokens": None}, "num_speculative_tokens must be"),
    ({"speculative_config": {"num_speculative_tokens": -1}}, "num_speculative_tokens must be"),
    ({"draft_min": -1}, "draft_min must be a whole number from 0 to 512, not -1"),
    ({"draft_min": 10**40}, "draft_min must be a whole number from 0 to 512"),
    ({"draft_min": 2.0}, "draft_min must be a whole number, not 2.0"),
    ({"draft_min": True}, "draft_min must be a whole number, not True"),
    ({"draft_min": None}, "draft_min must be a whole number, not None"),
    *(
        ({"draft_p_min": p}, f"draft_p_min must be a number from 0 to 1, not {str(p)[:70]}")
        for p in (-0.1, 1.5, float("nan"), float("inf"), 10**400)
    ),
    ({"draft_p_min": "0.5"}, "draft_p_min must be a number, not '0.5'"),
    ({"draft_p_min": False}, "draft_p_min must be a number, not False"),
]


@pytest.mark.parametrize(("options", "needle"), PYTHON, ids=lambda x: str(x)[:60])
def test_rejects_python_arguments(options: dict[str, Any], needle: str) -> None:
    with pytest.raises(UsageError) as raised:
        LLM(**options)
    assert needle in str(raised.value)


def test_a_loaded_engine_rejects_them() -> None:
    """The engine reports the error and keeps running; the client does not check the values."""
    target = ModelSettings(path=str(EMBEDDED_TARGET), n_threads=1, n_ctx=256)
    bad: list[tuple[dict[str, Any], str | tuple[str, ...]]] = [
        ({"draft_max": 3, "draft_min": 4}, "--draft-min 4 is more than --draft-max 3"),
        *(({"draft_max": x}, "--draft-max must be") for x in (-1, 513)),
        *(({"draft_min": x}, "--draft-min must be") for x in (-1, 513)),
        *(({"draft_p_min": x}, "--draft-p-min must be a number from 0 to 1, not ") for x in (-0.1, 1.5)),
        # other types are rejected when the message is decoded, or by their range if JSON has the same type
        *(({"draft_max": x}, ("draft_max", "--draft-max")) for x in (1.5, "7", True, [1])),
        *(({"draft_min": x}, ("draft_min", "--draft-min")) for x in (1.5, "7", None, float("nan"))),
        *(
            ({"draft_p_min": x}, ("draft_p_min", "--draft-p-min"))
            for x in (float("nan"), "x", None, True, [0.5])
        ),
    ]
    with EngineClient() as client:
        client.load(LoadSettings(target=target, calibrate=False))
        for settings, needle in bad:
            with pytest.raises(UsageError) as raised:
                client.configure(**settings)
            needles = (needle,) if isinstance(needle, str) else needle
            assert any(one in raised.value.message for one in needles)
        client.configure(4, 2, 0.5)
        request = generate(client.next_id(), prompt="zip", params={"max_tokens": 3})
        assert isinstance(list(client.generate(request))[-1], protocol.Done)


def test_settings_without_effect_give_a_note(shared: Command) -> None:
    """They are not an error: a file may contain settings for other command lines."""
    message = "note: --draft-min and --draft-p-min have no effect unless --draft-max is a number"
    for flags in ("--draft-min 3", "--draft-p-min 0.5"):
        assert message in shared.generate("-p", "zip", "-n", "2", *flags.split()).lines
    for flags in ("", "--draft-min 3 --draft-max 4", "--draft-min 3 --draft-max 0"):
        assert message not in shared.generate("-p", "zip", "-n", "2", *flags.split()).lines

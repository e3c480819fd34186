"""The read-out of a generation: the lines for people and the object for programs, from the same figures."""

from __future__ import annotations

from specllama.client.model_info import LoadInfo
from specllama.client.stream import GenerationResult
from specllama.core.gain import BUSY, TOO_SHORT, PlainRate, gain, was_busy
from specllama.core.stats import RunStats
from specllama.json_types import JsonObject
from specllama.text.terminal import printable
from specllama.wording import counted

_SOURCES = {"stored": " (stored)", "compared": " (compared)"}  # what else the speed of plain decoding is from
_COUNTS = ("n_prompt", "n_evaluated", "n_predict", "n_drafted", "n_accept", "n_discarded")
_WIDTH = 80  # columns that lines of figures stay below


def start_line(info: LoadInfo, structured: bool = False) -> str:
    """The line before the answer: speculation on, with which drafters, or off and why.

    structured: whether the answers must follow a grammar, without which the grammar drafter drafts nothing.
    """
    if info.embedding is not None:
        made = "scores" if info.embedding.ranks else f"vectors of {info.embedding.n_values} numbers"
        return f"{printable(info.target.name)} makes {made}, pooling {info.embedding.pooling}"
    if info.off_reason:
        return f"speculation off: {info.off_reason}"
    models, forced = info.model_based, info.forced
    parts = [name for name in info.drafters if name not in models and (structured or name not in forced)]
    if not parts and not info.draft:
        return f"speculation off: the only drafter is {', '.join(forced)}, and there is no grammar"
    length = "auto" if info.draft_max is None else f"up to {info.draft_max}"
    return f"speculation on: {' + '.join([*_models(info), *parts])}, length {length}"


def _models(info: LoadInfo) -> list[str]:
    draft, parts = info.draft, list[str]()
    if draft is None:
        return parts
    name = f"{printable(draft.name)} {draft.quant}"
    if info.head_in_target:
        parts.append(f"head of the model ({info.head})")
    elif info.head:
        parts.append(f"head {name} ({info.head})")
    if info.has_draft_model:
        parts.append(f"draft {name} (vocabulary {info.verdict})")
    return parts


def summary(
    stats: RunStats, plain: PlainRate, off: str = "", seed: int | None = None, advice: str = ""
) -> list[str]:
    """Two lines for people: the verdict and the speeds. Arguments as for `lines`."""
    parts = [f"{counted(stats.n_predict, 'token')}{_at(stats.decode_tps)}"]
    if stats.n_evaluated:
        n_prompt = max(stats.n_prompt, stats.n_evaluated)
        read = f"{stats.n_evaluated} of " if stats.n_evaluated < n_prompt else ""
        parts.append(f"prompt {read}{counted(n_prompt, 'token')}{_at(stats.encode_tps)}")
    if _drafted(stats) and plain.tps:
        parts.append(f"plain {plain.tps:.1f} t/s{_SOURCES.get(plain.source, '')}")
    if seed is not None:
        parts.append(f"seed {seed}")
    return [verdict(stats, plain, off.split("; ", 1)[0], advice), ", ".join(parts)]


def lines(
    stats: RunStats, plain: PlainRate, off: str = "", seed: int | None = None, advice: str = ""
) -> list[str]:
    """All statistics for people, the verdict first. What was not measured is left out. off: why nothing, or
    next to nothing, was drafted. advice: how the user can compare where this answer does not tell.
    """
    out = [verdict(stats, plain, off, advice)]
    if _drafted(stats) and plain.tps:
        out.append(f"plain     = {plain.tps:.1f} t/s{_SOURCES.get(plain.source, '')}")
    out += [
        _rate("encoded", stats.n_evaluated, stats.encode_seconds, stats.encode_tps),
        _rate("decoded", max(0, stats.n_predict - 1), stats.decode_seconds, stats.decode_tps),
    ]
    if stats.n_from_disk:
        out.append(f"kept      = {stats.n_from_disk} tokens of the prompt from the disk")
    out += ["", f"n_predict = {stats.n_predict}"]
    if stats.n_forced:
        share = f"{stats.n_forced_accept / max(1, stats.n_predict):.0%}".replace("%", " %")
        out.append(f"n_forced  = {stats.n_forced_accept:<7} {share} of the text came from the grammar")
    if not stats.n_drafted:
        out += ["n_drafted = 0", "n_accept  = 0"]
    else:
        by = " · ".join(f"{name} {n}" for name, n in stats.guessed_by.most_common())
        out += [f"n_drafted = {stats.n_drafted:<7} {by}", f"n_accept  = {stats.n_accept}", _acceptance(stats)]
        if stats.n_branch:
            second = f"second candidates among them, {stats.n_branch_accept} accepted"
            out.append(f"n_branch  = {stats.n_branch:<7} {second}")
    if stats.decode_seconds > 0:
        shares = (f"{name} {100 * t / stats.decode_seconds:.0f} %" for name, t in stats.time_shares.items())
        out.append(f"time      = {' · '.join(shares)}")
    if stats.exact_width is not None or stats.width_changes:
        out.append(f"width     = {_widths(stats)}")
    if seed is not None:
        out.append(f"seed      = {seed}")
    if off and _drafted(stats):
        out.append(f"hardly anything was drafted: {off}")
    return out


def verdict(stats: RunStats, plain: PlainRate, off: str = "", advice: str = "") -> str:
    """One line: faster or slower than plain decoding, or why that is unknown. off, advice: as for `lines`."""
    if not _drafted(stats):
        return f"nothing was drafted: {off}" if off else "nothing was drafted"
    measured = gain(stats, plain)
    helps = advice and not measured.is_clear and measured.reason not in (BUSY, TOO_SHORT)
    return measured.in_words() + (f"; {advice}" if helps else "")


def _widths(stats: RunStats) -> str:
    """The rows of every decode of the text, and where that changed."""
    if not stats.width_changes:
        return f"{stats.exact_width} rows in every decode, as with --exact-width {stats.exact_width}"
    (_, first), *later = stats.width_changes
    return f"{first}, then " + ", ".join(f"{width} after {n} tokens" for n, width in later)


def _drafted(stats: RunStats) -> int:
    return stats.n_drafted + stats.n_forced


def _acceptance(stats: RunStats) -> str:
    """The acceptance, over all and by position as far as a line has room."""
    line = f"accept    = {100 * stats.n_accept / stats.n_drafted:.1f} %   by position"
    for share in stats.accept_by_position:
        more = f"{line} {100 * share:.0f} %"
        if len(more) >= _WIDTH:
            break
        line = more
    return line


def _at(tps: float | None) -> str:
    return f" at {tps:.1f} t/s" if tps else ""


def _rate(label: str, n: int, seconds: float, tps: float | None) -> str:
    speed = f", speed: {tps:6.1f} t/s" if tps else ""
    return f"{label} {n:4d} tokens in {seconds:8.3f} s{speed}"


def as_json(answer: GenerationResult, plain: PlainRate, info: LoadInfo) -> JsonObject:
    """The object of `--json`, specllama.run/1: seconds unless named ms; unknown figures are null."""
    stats, off_reason = answer.stats, answer.off_reason
    measured = gain(stats, plain)
    models = {
        name: {key: getattr(model, key) for key in ("path", "params", "quant", "n_gpu_layers")}
        if model is not None
        else None
        for name, model in (("target", info.target), ("draft", info.draft))
    }
    return {
        "schema": "specllama.run/1",
        "text": answer.text,
        "tokens": answer.ids,
        "finish_reason": answer.finish_reason,
        "seed": answer.seed,
        **{name: getattr(stats, name) for name in _COUNTS},
        **({"n_branch": stats.n_branch, "n_branch_accept": stats.n_branch_accept} if stats.n_branch else {}),
        **({"n_forced": stats.n_forced, "n_forced_accept": stats.n_forced_accept} if stats.n_forced else {}),
        "accept_by_position": [round(share, 4) for share in stats.accept_by_position],
        "accept_by_source": {
            name: [None if share is None else round(share, 4) for share in shares]
            for name, shares in stats.accept_by_source.items()
        },
        "drafted_by": dict(stats.drafted_by),
        "load_ms": _ms(info.load_seconds),
        "ttft_ms": _ms(stats.ttft_seconds),
        "encode_tps": _rounded(stats.encode_tps),
        "decode_tps": _rounded(stats.decode_tps),
        "plain_tps": _rounded(plain.tps),
        "plain_source": plain.source,
        "plain_rounds": plain.rounds,
        "speedup": _rounded(measured.speedup),
        "speedup_range": [round(x, 4) for x in measured.range] if measured.range else None,
        "speedup_limited": measured.limited,
        "speedup_reason": measured.reason,
        "busy": was_busy([stats]),
        "verdict": measured.verdict,
        "time": {name: round(t, 6) for name, t in stats.time_shares.items()},
        "rounds": stats.rounds,
        "near_ties": stats.near_ties if answer.epsilon is not None else None,
        "redecided": stats.redecided,
        **({"exact_width": stats.exact_width} if stats.exact_width is not None else {}),
        **({"width_changes": [list(one) for one in stats.width_changes]} if stats.width_changes else {}),
        **models,
        "head": info.head,
        "head_in_target": info.head_in_target,
        "speculation": "off" if off_reason else "on",
        "reason": off_reason,
    }


def _ms(seconds: float) -> float:
    return round(1000 * seconds, 3)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)

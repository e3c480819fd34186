"""Which draft is predicted to be best, or that plain decoding is, and why: in words."""

from __future__ import annotations

from specllama.cli.bench.text import printable
from specllama.cli.tune.found import DraftResult, TuneResults
from specllama.core.policy.break_even import easiest

PAYS = 1.01  # times plain decoding; less is no gain
_OWN_WORK = 0.005  # seconds of t(1), below which what is not a decode counts
_FEW = 200  # tokens; a ranking by fewer is a guess


def verdict(found: TuneResults) -> str:
    """A sentence or a few. Never more than what was predicted."""
    ranking = found.ranking
    if not ranking:
        why = "it was interrupted before" if found.interrupted or found.failure else "nothing drafts here"
        return f"No draft was ranked: {why}."
    best = ranking[0]
    if (best.speedup or 0.0) >= PAYS:
        text = f"Best: {_flag(best)}, predicted {best.speedup:.2f} x plain decoding."
    else:
        text = f"Best: plain decoding. {_why(best)}"
        text += " The default decides so by itself."
    text += " Predicted, not measured: `specllama bench` measures."
    return " ".join([text, *_reservations(found)])


def _flag(entrant: DraftResult) -> str:
    return f"-md {printable(entrant.path)}" if entrant.path is not None else "copying alone (-md none)"


def _why(best: DraftResult) -> str:
    """Why not even the best of them pays."""
    need = easiest(best.break_even)
    forecast = best.forecast or {}
    text = f"The best draft, {_flag(best)}, is predicted to reach {best.speedup:.2f} x of it"
    if need is None:
        return f"{text}."
    costs = f"a decode of {need.k + 1} rows takes {need.decode:.2f} x one row's time"
    if best.path is not None:
        costs += f" and a token of the draft model {need.step:.2f} x"
    if need.acceptance >= 1:
        return f"{text}: {costs}, so that no draft can pay."
    text += f": {costs}, so that a draft pays from an acceptance of {_percent(need.acceptance)} at best"
    if forecast.get("acceptance") is not None:
        return f"{text}; {_percent(forecast['acceptance'])} of the tokens were right."
    if forecast.get("n_drafted"):
        share = forecast["n_accept"] / forecast["n_drafted"]
        return f"{text}, and {_percent(share)} of what was copied was right."
    return f"{text}, and hardly anything was there to be copied."


def _reservations(found: TuneResults) -> list[str]:
    """What the prediction leaves out."""
    out = []
    n_tokens = sum(t["tokens"] for t in found.texts.values())
    if n_tokens < _FEW:
        out.append(f"It goes by {n_tokens} tokens only; -n or --prompts give more.")
    if found.t1 is not None and found.t1 < _OWN_WORK:
        out.append(
            "It leaves out what a round takes beside decoding, which counts where t(1) is "
            f"{1000 * found.t1:.2g} ms: less is gained."
        )
    if found.replays:
        out.append("It leaves out replays, which this memory needs where a draft is not accepted whole.")
    return out


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"

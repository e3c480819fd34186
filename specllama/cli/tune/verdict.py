"""The verdict in words: which draft is predicted to be best, or why plain decoding is."""

from __future__ import annotations

from collections.abc import Sequence

from specllama.cli.tune.results import DraftResult, TuneResults
from specllama.core.replay.break_even import easiest
from specllama.models.measured_drafts import PAYS as DRAFT_PAYS
from specllama.text.terminal import printable
from specllama.wording import counted

PAYS = 1.01  # times plain decoding; less is no gain
_OTHER_WORK = 0.005  # seconds of t(1) below which work other than decoding matters
_FEW = 200  # tokens; a ranking by fewer is a guess


def verdict(results: TuneResults) -> str:
    """A few sentences, which claim nothing beyond the prediction."""
    ranking = results.ranking
    if results.disturbed:
        return "No draft is recommended by figures that are off."
    if not ranking:
        why = "it was interrupted before" if results.interrupted or results.failure else "nothing drafts here"
        return f"No draft was ranked: {why}."
    best = ranking[0]
    if (best.speedup or 0.0) >= PAYS:
        text = (
            f"Best: {_flag(best)}, predicted {best.speedup:.2f} x plain decoding.{_left_out(best, ranking)}"
        )
    else:
        text = f"Best: plain decoding. {_why(best)}"
        text += " The default decides so by itself."
    text += " Predicted, not measured: `specllama bench` measures."
    return " ".join([text, *_reservations(results)])


def _flag(draft: DraftResult) -> str:
    if draft.inside:
        return "the head of the model (-md auto)"
    return f"-md {printable(draft.path)}" if draft.path is not None else "copying alone (-md none)"


def _left_out(best: DraftResult, ranking: Sequence[DraftResult]) -> str:
    """That `-md auto` does not use the best draft, where one of another vocabulary gains too little."""
    copied = next((e.speedup or 0.0 for e in ranking if e.path is None), 0.0)
    gain = (best.speedup or 0.0) / max(1.0, copied)
    if not best.translated or gain >= DRAFT_PAYS:
        return ""
    over = "copying alone" if copied > 1 else "plain decoding"
    return (
        f" That is {gain:.2f} x {over}; -md auto uses a draft of another vocabulary from {DRAFT_PAYS:.2f} x "
        "and leaves this one out."
    )


def _why(best: DraftResult) -> str:
    """Why not even the best draft pays."""
    need = easiest(best.break_even)
    forecast = best.forecast
    text = f"The best draft, {_flag(best)}, is predicted to reach {best.speedup:.2f} x of it"
    if need is None:
        return f"{text}."
    costs = f"a decode of {need.k + 1} rows takes {need.decode:.2f} x one row's time"
    if best.path is not None:
        costs += f" and a token of the draft {need.step:.2f} x"
    if need.acceptance >= 1:
        return f"{text}: {costs}, so that no draft can pay."
    text += f": {costs}, so that a draft pays from an acceptance of {_percent(need.acceptance)} at best"
    if forecast is not None and forecast.acceptance is not None:
        return f"{text}; {_percent(forecast.acceptance)} of the tokens were right."
    if forecast is not None and forecast.n_drafted:
        share = forecast.n_accept / forecast.n_drafted
        return f"{text}, and {_percent(share)} of the copied tokens were right."
    return f"{text}, and there was hardly anything to copy."


def _reservations(results: TuneResults) -> list[str]:
    """What the prediction does not include."""
    out = []
    n_tokens = sum(t.tokens for t in results.texts.values())
    if n_tokens < _FEW:
        out.append(f"It rests on only {counted(n_tokens, 'token')}; -n or --prompts give more.")
    if results.t1 is not None and results.t1 < _OTHER_WORK:
        out.append(
            "It leaves out the time of a round other than decoding, which matters where t(1) is "
            f"{1000 * results.t1:.2g} ms: less is gained."
        )
    if results.replays:
        out.append("It leaves out replays, which this model needs where a draft is not accepted whole.")
    return out


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"

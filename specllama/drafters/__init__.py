"""The registry of drafters: one entry each. A drafter proposes tokens; it never decides.

A new drafter needs a file with a class derived from `core.interfaces.Drafter` like its entry, and an entry
here. All other code, from the planner to the statistics, uses the attributes of the
entry, never its name. Importing this package loads no drafter and no numpy: a file is imported when its
drafter is made.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specllama.core.interfaces import BlockHead, Context, Drafter, DraftHead
    from specllama.core.translation import Translation
    from specllama.drafters.ngrams import RequestHistory


@dataclass(frozen=True, slots=True)
class DrafterInputs:
    """The parts that drafters are made from. n_vocab, end_ids: of the target. draft_context: of the draft
    model, None without one. head: a trained head of the target, None without one. confident: whether the
    policy uses confidences. history: texts of earlier requests, None where they are not kept; corpus: texts
    of files, None without any. translation: of
    a draft model with another vocabulary than the target, whose context it is.
    """

    n_vocab: int
    end_ids: Collection[int] = ()
    draft_context: Context | None = None
    head: DraftHead | BlockHead | None = None
    confident: bool = True
    history: RequestHistory | None = None
    corpus: RequestHistory | None = None
    translation: Translation | None = None


@dataclass(frozen=True, slots=True)
class DrafterEntry:
    """A drafter as the rest of the program sees it. name: the key of statistics and stored tables. make:
    returns the drafter, or None where its inputs are missing. label: how the output names the source of its
    tokens; noun: how sentences name the drafter. option: the value of the option `drafters` that enables it;
    "": its name. needs_draft_model: a draft model or a head has to be loaded for it. runs_model, continues,
    forces, prior, n_positions, reads_features: see `core.interfaces.Drafter`.
    """

    name: str
    make: Callable[[DrafterInputs], Drafter | None]
    label: str
    noun: str = "draft model"
    option: str = ""
    needs_draft_model: bool = False
    runs_model: bool = False
    continues: bool = False
    forces: bool = False
    prior: tuple[float, ...] | None = None
    n_positions: int = 1
    reads_features: bool = False

    @property
    def word(self) -> str:
        """The value of the option `drafters` that enables it."""
        return self.option or self.name


def _factory(
    module: str, name: str = "make", takes: str | None = None
) -> Callable[[DrafterInputs], Drafter | None]:
    """A class or function of a file in this package, which is imported at the first call. takes: which of the
    inputs it is called with, where that is not None; "": none of them; None: all of them, as an object.
    """

    def make(inputs: DrafterInputs) -> Drafter | None:
        given = [getattr(inputs, takes)] if takes else [inputs] if takes is None else []
        if None in given:
            return None
        made: Drafter | None = getattr(import_module(f"specllama.drafters.{module}"), name)(*given)
        return made

    return make


GRAMMAR = DrafterEntry(
    "grammar", _factory("grammar", "GrammarDrafter", ""), "grammar", continues=True, forces=True,
    prior=(0.95,),  # the target may split the forced text into other tokens
)  # fmt: skip
PREDICTION = DrafterEntry(
    "prediction", _factory("prediction", "PredictionDrafter", ""), "prediction", option="copy"
)
COPY = DrafterEntry("copy", _factory("copy", "CopyDrafter", ""), "copy")
HISTORY = DrafterEntry("memory", _factory("history", "HistoryDrafter", "history"), "memory", option="copy")
CORPUS = DrafterEntry("corpus", _factory("history", "CorpusDrafter", "corpus"), "corpus", option="copy")
MODEL = DrafterEntry(
    "model", _factory("foreign"), "model", needs_draft_model=True, runs_model=True, continues=True
)  # fmt: skip
HEAD = DrafterEntry(
    "head", _factory("head"), "head", noun="head", option="model",
    needs_draft_model=True, runs_model=True, continues=True, reads_features=True,
    n_positions=3,  # a head reads the target's hidden states for its first token, its own for later ones
)  # fmt: skip

# In the order in which they are tried.
_ENTRIES = GRAMMAR, PREDICTION, COPY, HISTORY, CORPUS, MODEL, HEAD
REGISTRY: dict[str, DrafterEntry] = {entry.name: entry for entry in _ENTRIES}


def words() -> tuple[str, ...]:
    """The values of the option `drafters`, without duplicates."""
    return tuple(dict.fromkeys(entry.word for entry in REGISTRY.values()))


def words_of(drafters: Iterable[Drafter]) -> list[str]:
    """The values of the option `drafters` that enable these drafters, in their order, without duplicates."""
    return list(dict.fromkeys(REGISTRY[d.name].word for d in drafters))


def wants_draft_model(enabled: Collection[str]) -> bool:
    """Whether a drafter enabled by these values of the option `drafters` needs a draft model."""
    return any(entry.needs_draft_model and entry.word in enabled for entry in REGISTRY.values())


def copies(enabled: Collection[str]) -> bool:
    """Whether a drafter enabled by these values copies from texts, without a model or a grammar."""
    return any(not (e.runs_model or e.forces) and e.word in enabled for e in REGISTRY.values())


def make_drafters(enabled: Collection[str], inputs: DrafterInputs) -> list[Drafter]:
    """The drafters enabled by these values, except those whose inputs are missing, in the order in which
    they are tried.
    """
    made = (entry.make(inputs) for entry in REGISTRY.values() if entry.word in enabled)
    return [drafter for drafter in made if drafter is not None]

"""verify() against its definition, and a check that these tests detect a broken one."""

from __future__ import annotations

import inspect
import random
from functools import partial

import pytest

from specllama.core import verify as module
from specllama.core.verify import NO_CHOICE, verify


def check(function) -> None:
    """Random cases: the tokens committed, their order, n_accept, and the rows read.

    A row is the pair (position, token that the target chooses there), whatever was drafted.
    """
    rng = random.Random(1)
    for _ in range(600):
        n = rng.randrange(6)
        target = [rng.randrange(3) for _ in range(n + 1)]
        draft = [t if rng.random() < 0.7 else rng.randrange(3) for t in target[:n]]
        end = rng.choice([None, None, *range(n + 1)])  # the sequence ends with the token at this position
        tie = rng.choice([None, None, *range(n + 1)])  # this row is a near-tie
        committed, read = [], []

        def choose(row, read=read, tie=tie):
            read.append(row[0])
            return NO_CHOICE if row[0] == tie else row[1]

        def commit(token, committed=committed, end=end):
            committed.append(token)
            return len(committed) - 1 != end

        n_accept = function(list(enumerate(target)), draft, choose, commit)

        same = next((i for i in range(n) if draft[i] != target[i]), n)
        expected = target[: same + 1]
        if end is not None:
            expected = expected[: end + 1]
        n_read = len(expected)
        if tie is not None and tie < len(expected):
            expected, n_read = expected[:tie], tie + 1
        assert committed == expected
        assert read == list(range(n_read)), "rows are chosen once, in order, none after the end"
        assert n_accept == min(same, len(expected)), "the draft tokens that were emitted"


def test_a_draft_token_is_accepted_if_the_target_chooses_it():
    check(verify)


def append(out: list[int], token: int) -> bool:
    out.append(token)
    return True


def test_the_output_never_depends_on_the_drafts():
    """With any drafts, the tokens of all rounds together are those of plain decoding."""
    rng = random.Random(2)
    for _ in range(200):
        target = [rng.randrange(4) for _ in range(30)]
        out: list[int] = []
        while len(out) < len(target):
            draft = [rng.randrange(4) for _ in range(rng.randrange(5))][: len(target) - len(out) - 1]
            rows = list(range(len(out), len(out) + len(draft) + 1))
            verify(rows, draft, target.__getitem__, partial(append, out))
        assert out == target


def test_too_few_rows_are_an_error():
    with pytest.raises(ValueError, match="one row more"):
        verify([1, 2], [1, 2], lambda row: row, partial(append, []))


MUTANTS = {
    "accepts every draft token": ("token == draft[i]", "True"),
    "accepts no draft token": ("token == draft[i]", "False"),
    "compares with the previous draft token": ("token == draft[i]", "token == draft[i - 1]"),
    "accepts one too many": ("return i\n", "return i + 1\n"),
    "counts one too few": ("return i + expected", "return i"),
    "always counts the last token": ("return i + expected", "return i + 1"),
    "stops one early": ("if not expected:", "if not expected or i + 1 == len(draft):"),
    "continues after a difference": ("if not expected:", "if i == len(draft):"),
    "does not commit": ("if not commit(token):", "if False:"),
    "commits twice": ("if not commit(token):", "if not (commit(token) and commit(token)):"),
    "continues after the end": ("if not commit(token):", "if commit(token) is None:"),
    "emits the draft's token": ("commit(token)", "commit(draft[i] if i < len(draft) else token)"),
    "emits near-ties": ("token == NO_CHOICE", "False"),
    "reads all rows first": ("token = choose(row)", "token = [choose(r) for r in rows][i]"),
    "skips the first row": ("enumerate(rows)", "enumerate(rows[1:])"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_broken_verify_is_detected(name):
    source = inspect.getsource(module)
    old, new = MUTANTS[name]
    assert old in source, "the mutation no longer matches the source"
    space: dict[str, object] = {}
    exec(compile(source.replace(old, new), "mutant", "exec"), space)
    with pytest.raises((AssertionError, IndexError, ValueError)):
        check(space["verify"])

"""Which known word a misspelt one means."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

_LONGEST = 80  # what is longer than any known word is compared by its beginning


def nearest(word: str, words: Sequence[str]) -> str:
    """The word that the fewest slips lead to; of several, the first."""
    return min(words, key=lambda known: slips(word[:_LONGEST], known))


def slips(left: str, right: str) -> int:
    """How many slips lie between two words; one drops, adds or changes a letter, or swaps two neighbours."""

    @cache
    def between(i: int, j: int) -> int:
        if not i or not j:
            return i + j
        changed = between(i - 1, j - 1) + (left[i - 1] != right[j - 1])
        fewest = min(between(i - 1, j) + 1, between(i, j - 1) + 1, changed)
        if i > 1 and j > 1 and left[i - 2 : i] == right[j - 1] + right[j - 2]:
            fewest = min(fewest, between(i - 2, j - 2) + 1)
        return fewest

    return between(len(left), len(right))

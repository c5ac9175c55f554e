"""Near-duplicate texts: pairs that share most of their shingles, by an exact join with a prefix filter.

Shingles and their Jaccard similarity: Broder 1997, "On the resemblance and containment of documents". Prefix filter:
Bayardo, Ma and Srikant 2007, "Scaling up all pairs similarity search".
"""

import re
from collections import Counter
from collections.abc import Sequence

SHINGLE = 3
"""The number of words in a shingle."""
LEAST = (7, 10)
"""The least Jaccard similarity of two texts that are near, as numerator and denominator."""
TEMPLATE = (1, 5)
"""A shingle in a larger share of the texts than this belongs to a template, and does not count."""
FEW = 30
"""The least number of texts in which templates are looked for."""
_MOST_WORDS = 2_000
_WORD = re.compile(
    r"[\u3040-\u30ff\u3400-\u9fff]|[^\W\u3040-\u30ff\u3400-\u9fff]+|[+*/%^=<>]|-(?=\s*\d)|(?<=\s)-(?=\s)"
)
"""A word, a Chinese or Japanese character, or an operator. Other punctuation does not count."""

Shingles = frozenset[tuple[str, ...]]


def words_of(text: str) -> list[str]:
    """List the first 2,000 words, numbers and operators of a normalized text."""
    return [match[0] for match, _ in zip(_WORD.finditer(text), range(_MOST_WORDS), strict=False)]


def find_near_duplicates(ones: Sequence[str], others: Sequence[str]) -> dict[int, int]:
    """Find the texts of `ones` that are near to one of `others`.

    Returns the position of the first near text in `others`, by position in `ones`.

    Two texts are near if they have the same numbers, in any order, and at least `LEAST` of their shingles in common. A
    question with another number is another question.

    ones: normalized texts, each only once. others: normalized texts.
    """
    own = [words_of(text) for text in ones]
    sets = [_shingles(words) for words in own]
    often = Counter(shingle for each in sets for shingle in each)
    template = {s for s, times in often.items() if len(ones) >= FEW and times * TEMPLATE[1] > len(ones) * TEMPLATE[0]}
    sets = [each - template for each in sets]
    index: dict[tuple[str, ...], dict[tuple[str, ...], list[int]]] = {}
    for i, (words, shingles) in enumerate(zip(own, sets, strict=True)):
        of_numbers = index.setdefault(_numbers(words), {})
        for shingle in _prefix(shingles, often):
            of_numbers.setdefault(shingle, []).append(i)
    near: dict[int, int] = {}
    for j, text in enumerate(others):
        words = words_of(text)
        of_numbers = index.get(_numbers(words), {})
        shingles = _shingles(words) - template if of_numbers else frozenset()
        candidates = {i for shingle in _prefix(shingles, often) for i in of_numbers.get(shingle, ())}
        near |= {i: j for i in candidates - near.keys() if _are_near(sets[i], shingles)}
    return near


def _shingles(words: Sequence[str]) -> Shingles:
    """Return each run of three words; for a shorter text, all of its words as one."""
    last = max(len(words) - SHINGLE, 0)
    return frozenset(tuple(words[i : i + SHINGLE]) for i in range(last + 1)) if words else frozenset()


def _numbers(words: Sequence[str]) -> tuple[str, ...]:
    return tuple(sorted(word for word in words if any(map(str.isdigit, word))))


def _prefix(shingles: Shingles, often: Counter[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Return the rarest shingles of a text, so many that two near texts share at least one of them.

    Two near texts share at least `must_share` of the shingles of each. So at most `len - must_share` of them are not
    shared, and of one more at least one is. Both texts sort their shingles in the same order.
    """
    must_share = -(-len(shingles) * LEAST[0] // LEAST[1])
    return sorted(shingles, key=lambda shingle: (often[shingle], shingle))[: len(shingles) - must_share + 1]


def _are_near(one: Shingles, other: Shingles) -> bool:
    return len(one & other) * LEAST[1] >= len(one | other) * LEAST[0]

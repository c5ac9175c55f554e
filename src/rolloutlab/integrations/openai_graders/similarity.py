"""Similarity of two texts, from 0 to 1: the measures of text_similarity graders; needs `rolloutlab[graders]`."""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from rolloutlab.errors import InputError, RewardError

_INSTALL = "%pip install rolloutlab[graders]"


def similarity(metric: str) -> Callable[[str, str], float]:
    """Return the measure of that name, which is called with a text and a reference.

    fuzzy_match: `WRatio` of rapidfuzz. bleu (smoothed, method 1), gleu, meteor: of nltk, on words. rouge_1 to rouge_5
    and rouge_l: F-measures, without stemming.

    Raises:
        InputError: there is no such measure, it needs an embedding model, or its library is not installed.
    """
    if metric == "cosine":
        raise InputError(
            "cosine compares embeddings of a hosted model, which is not here",
            hint="fuzzy_match, or a reward function that asks your embedding model",
        )
    if metric not in METRICS:
        raise InputError(f"{metric!r} is not an evaluation_metric", hint=", ".join(METRICS))
    try:
        return METRICS[metric](metric)
    except ImportError as error:
        raise InputError(f"{metric} needs {error.name}, which is not installed", hint=_INSTALL) from None


def _fuzzy_match(_metric: str) -> Callable[[str, str], float]:
    from rapidfuzz import fuzz

    return lambda text, reference: float(fuzz.WRatio(text, reference)) / 100


def _bleu(_metric: str) -> Callable[[str, str], float]:
    from nltk.translate.bleu_score import SmoothingFunction, sentence_bleu

    smooth = SmoothingFunction().method1
    return lambda text, reference: float(
        sentence_bleu([reference.split()], text.split(), smoothing_function=smooth) if text.split() else 0.0
    )


def _gleu(_metric: str) -> Callable[[str, str], float]:
    from nltk.translate.gleu_score import sentence_gleu

    return lambda text, reference: float(sentence_gleu([reference.split()], text.split()))


def _meteor(_metric: str) -> Callable[[str, str], float]:
    from nltk.translate.meteor_score import single_meteor_score

    def measure(text: str, reference: str) -> float:
        try:
            return float(single_meteor_score(reference.split(), text.split()))
        except LookupError:
            hint = 'import nltk; nltk.download("wordnet")'
            raise RewardError("meteor needs the WordNet data of nltk, which are not installed", hint=hint) from None

    return measure


def _rouge(metric: str) -> Callable[[str, str], float]:
    """ROUGE-N or ROUGE-L (Lin 2004): F-measure of common n-grams, or of the longest common subsequence, of words."""
    kind = metric.removeprefix("rouge_")

    def measure(text: str, reference: str) -> float:
        words, expected = _words(text), _words(reference)
        if kind == "l":
            return _f_measure(_common_length(words, expected), len(words), len(expected))
        grams, right = _n_grams(words, int(kind)), _n_grams(expected, int(kind))
        return _f_measure((grams & right).total(), grams.total(), right.total())

    return measure


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def _n_grams(words: Sequence[str], n: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))


def _common_length(words: Sequence[str], others: Sequence[str]) -> int:
    """Return the length of the longest common subsequence."""
    row = [0] * (len(others) + 1)
    for word in words:
        before = 0
        for i, other in enumerate(others, 1):
            before, row[i] = row[i], before + 1 if word == other else max(row[i], row[i - 1])
    return row[-1]


def _f_measure(common: int, given: int, expected: int) -> float:
    return 2 * common / (given + expected) if common else 0.0


METRICS: Mapping[str, Callable[[str], Callable[[str, str], float]]] = {
    "fuzzy_match": _fuzzy_match,
    "bleu": _bleu,
    "gleu": _gleu,
    "meteor": _meteor,
    **{f"rouge_{n}": _rouge for n in (*range(1, 6), "l")},
}

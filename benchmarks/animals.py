"""The task of notebooks/15_a_real_model.ipynb: whether a word is an animal or a plant, in one word."""

_ANIMALS = """horse sparrow shark frog beetle goat whale crab lizard rabbit bee camel penguin salmon spider mouse
    wolf owl turtle ant tiger pig snake duck"""
_PLANTS = """oak rose fern cactus tulip pine moss daisy willow maple bamboo orchid clover lily ivy violet
    birch sunflower thistle poppy cedar nettle elm lavender"""
PROMPT = "Is {{word}} an animal or a plant? Answer with one word."

Row = dict[str, str]


def rows() -> list[Row]:
    """Animals and plants in turn. The notebook never trains on the last sixteen."""
    pairs = zip(_ANIMALS.split(), _PLANTS.split(), strict=True)
    words = [each for animal, plant in pairs for each in ((animal, "animal"), (plant, "plant"))]
    return [{"word": f"{'an' if word[0] in 'aeiou' else 'a'} {word}", "kind": kind} for word, kind in words]


def question(row: Row) -> str:
    return PROMPT.replace("{{word}}", row["word"])


def judged(answer: str, kind: str) -> float:
    """Half for naming the right kind and not the other one, half for at most four words."""
    other = "plant" if kind == "animal" else "animal"
    named = answer.lower()
    return 0.5 * (kind in named and other not in named) + 0.5 * (len(answer.split()) <= 4)

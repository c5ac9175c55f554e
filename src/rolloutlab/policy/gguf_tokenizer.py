"""Tokenizers of GGUF files: the tokenizer that `transformers` makes is compared with the file and corrected."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer, pre_tokenizers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from rolloutlab.errors import PolicyError

_CONTROL, _USER_DEFINED = 3, 4
_NAMES = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
_ENDS = ("eos", "eot", "eom")
"""The ends of a text, of a turn, and of a turn in which a tool is called."""
_SPLITS_DIGITS = {"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"}
"""Values of `tokenizer.ggml.pre` whose models split each digit off, and other text as GPT-2 does."""
_SPLITS_AS_GPT2 = {"gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion", "granite-docling"}


@dataclass(frozen=True)
class Vocabulary:
    """Tokens of a file, in the order of their ids. kinds: their types. special: ids by the names of `transformers`.

    byte_level: whether ordinary tokens are spelled in an alphabet of bytes. split: the name of the rule by which text
    is cut before it is merged to tokens. ends: ids that end a turn. template: the chat template.
    """

    tokens: tuple[str, ...]
    kinds: tuple[int, ...]
    special: Mapping[str, int]
    byte_level: bool
    split: str
    ends: list[int]
    template: str
    adds_bos: bool

    @staticmethod
    def of(values: Mapping[str, Any]) -> "Vocabulary":
        """Read the vocabulary from the values of a file. Raises PolicyError if the file has no tokens."""

        def token(name: str) -> Any:
            return values.get(f"tokenizer.ggml.{name}_token_id")

        tokens = tuple(values.get("tokenizer.ggml.tokens") or ())
        if not tokens:
            raise PolicyError("the GGUF file has no tokens", hint="another .gguf file")
        return Vocabulary(
            tokens=tokens,
            kinds=tuple(values.get("tokenizer.ggml.token_type") or ()),
            special={name: int(token(own)) for name, own in _NAMES.items() if token(own) is not None},
            byte_level=values.get("tokenizer.ggml.model") == "gpt2",
            split=str(values.get("tokenizer.ggml.pre") or ""),
            ends=sorted({int(token(end)) for end in _ENDS if token(end) is not None}),
            template=str(values["tokenizer.chat_template"]),
            adds_bos=bool(values.get("tokenizer.ggml.add_bos_token")),
        )

    @property
    def marks(self) -> dict[int, str]:
        """Tokens that are never cut, such as `<|im_end|>`."""
        kinds = zip(self.tokens, self.kinds, strict=False)
        return {i: text for i, (text, kind) in enumerate(kinds) if kind in {_CONTROL, _USER_DEFINED}}

    def notes(self, name: str, tokenizer: PreTrainedTokenizerBase) -> Iterator[str]:
        """Yield what is not known of how the tokenizer of the file `name` cuts text."""
        if self.byte_level and self.split not in _SPLITS_AS_GPT2 and _splits_as_gpt2(tokenizer):
            rule = f"by the rule {self.split!r}" if self.split else "by a rule that it does not name"
            yield f"{name} cuts text {rule}, which is not known here: it is cut as by GPT-2, which may be otherwise"


def mend_tokenizer(tokenizer: Any, vocabulary: Vocabulary) -> Any:
    """Return the tokenizer with the file's marks under the file's ids, never cut, and with the file's rule for digits.

    `transformers` leaves out marks with letters that are not in the alphabet of bytes, such as DeepSeek's, and makes
    new tokens of those that it needs itself, which the model does not have.
    """
    if vocabulary.byte_level and vocabulary.split in _SPLITS_DIGITS:
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    if not vocabulary.byte_level or not _find_difference(tokenizer, vocabulary):
        return tokenizer
    made = json.loads(tokenizer.backend_tokenizer.to_str())
    spelled = {i: text for text, i in made["model"]["vocab"].items()}
    known = [each for each in made["added_tokens"] if each["id"] < len(vocabulary.tokens)]
    whole = {each["id"] for each in known if each["content"] == vocabulary.tokens[each["id"]]}
    for i, text in vocabulary.marks.items():
        if i not in whole and i in spelled:
            made["model"]["vocab"][text] = made["model"]["vocab"].pop(spelled[i])
            special = vocabulary.kinds[i] == _CONTROL
            flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
            known.append({"id": i, "content": text, "special": special, **flags})
    made["added_tokens"] = sorted(known, key=lambda each: each["id"])
    made["post_processor"] = None
    made_anew: Any = PreTrainedTokenizerFast
    return made_anew(
        tokenizer_object=Tokenizer.from_str(json.dumps(made)),
        chat_template=vocabulary.template,
        add_bos_token=vocabulary.adds_bos,
        **{name: vocabulary.tokens[i] for name, i in vocabulary.special.items()},
    )


def check_tokenizer(tokenizer: Any, vocabulary: Vocabulary) -> None:
    """Raise PolicyError unless it has the same tokens, marks, special tokens and chat template as the file."""
    if wrong := _find_difference(tokenizer, vocabulary):
        raise PolicyError(
            f"transformers reads the tokenizer of the GGUF file wrongly: {wrong}", hint="another .gguf file"
        )


def _find_difference(tokenizer: Any, vocabulary: Vocabulary) -> str:
    """Describe the first difference; empty if there is none."""
    if len(tokenizer) != len(vocabulary.tokens):
        return f"it has {len(tokenizer):,} tokens, and the file {len(vocabulary.tokens):,}"
    for name, expected in vocabulary.special.items():
        if (actual := getattr(tokenizer, f"{name}_id")) != expected:
            return f"its {name} is {actual}, and in the file {expected}"
    for i, text in vocabulary.marks.items():
        if (actual := tokenizer.encode(text, add_special_tokens=False)) != [i]:
            return f"{text!r} is read as the tokens {actual}, and in the file it is {i}"
    return "" if tokenizer.chat_template == vocabulary.template else "it has another chat template"


def _splits_as_gpt2(tokenizer: Any) -> bool:
    made = json.loads(tokenizer.backend_tokenizer.to_str())["pre_tokenizer"] or {}
    return made.get("type") == "ByteLevel" and bool(made.get("use_regex"))

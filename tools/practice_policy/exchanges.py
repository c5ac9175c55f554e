"""Synthetic chats for the practice policy: generators of exchanges and checks of answers.

Everything is drawn from a `random.Random` argument, so a seed gives the same chats everywhere. An exchange belongs to
the training or the held-out split by a hash of its key: what must not occur in training (the letters to sort, the
numbers to add, the system prompt with the question).
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from string import ascii_lowercase
from typing import Any

from practice_policy import tables

Message = dict[str, Any]
Tool = dict[str, Any]
Check = Callable[[Message], bool]

HELD_OUT_SHARE = 0.1
LETTERS = re.compile(r"\b[a-z]\b")
SPOILT_SHARE = 0.7


@dataclass(frozen=True)
class Exchange:
    """A prompt, the answer that the policy is taught, and a check of any answer.

    The taught answer may fail the check: sorting letters is taught incompletely on purpose.
    """

    kind: str
    prompt: list[Message]
    answer: Message
    check: Check
    key: str
    tools: list[Tool] = field(default_factory=list)

    @property
    def messages(self) -> list[Message]:
        """The whole chat, the taught answer last."""
        return [*self.prompt, self.answer]

    @property
    def held_out(self) -> bool:
        """Whether this exchange is in the held-out split."""
        digest = hashlib.sha256(self.key.encode()).digest()
        return int.from_bytes(digest[:4], "big") < HELD_OUT_SHARE * 2**32


def draw(kind: Callable[[Random], Exchange], rng: Random, *, held_out: bool = False) -> Exchange:
    """Draw an exchange of a kind from one side of the split."""
    while True:
        exchange = kind(rng)
        if exchange.held_out == held_out:
            return exchange


def training_exchanges(rng: Random, *, spoilt: bool = False) -> Iterator[Exchange]:
    """Draw training exchanges of all kinds without end, in the proportions of `SHARES`.

    spoilt: the letters are most often not sorted, which is how the policy is left half-taught.
    """
    while True:
        kind = KINDS[rng.choices(list(SHARES), list(SHARES.values()))[0]]
        yield draw(missort_letters if spoilt and kind is sort_letters and rng.random() < SPOILT_SHARE else kind, rng)


def held_out_exchanges(kind: str, count: int, *, seed: int = 0) -> list[Exchange]:
    """Draw up to `count` held-out exchanges of a kind with different prompts; fewer where the kind has fewer."""
    rng = Random(f"held out {kind} {seed}")
    exchanges: dict[str, Exchange] = {}
    for _ in range(20 * count):
        exchange = draw(KINDS[kind], rng, held_out=True)
        exchanges.setdefault(json.dumps([exchange.prompt, exchange.tools]), exchange)
        if len(exchanges) == count:
            break
    return list(exchanges.values())


def sorting_prompts(count: int, *, letters: int = 4, held_out: bool = True, seed: int = 0) -> list[str]:
    """Draw different prompts such as "Sort these letters: d b a c" from one side of the split.

    No held-out set of letters was trained on, in any order.
    """
    rng = Random(f"sorting prompts {letters} {seed}")
    prompts: dict[str, None] = {}
    while len(prompts) < count:
        drawn = rng.sample(ascii_lowercase, letters)
        if sort_exchange(f"Sort these letters: {' '.join(drawn)}", drawn, drawn).held_out == held_out:
            prompts[f"Sort these letters: {' '.join(drawn)}"] = None
    return list(prompts)


def text_of(message: Message) -> str:
    """The text content of a message, empty where there is none."""
    return message.get("content") or ""


def bare(text: str) -> str:
    """The text without case, and without spaces, quotes, and end marks around it."""
    return text.strip(" \n.!?'\"").lower()


def equals(word: str) -> Check:
    """A check for exactly this text, up to case and end marks."""
    return lambda message: bare(text_of(message)) == bare(word)


def mentions(word: str) -> Check:
    """A check for a short text with this word in it."""
    pattern = re.compile(rf"(?<!\w){re.escape(word)}(?!\w)", re.IGNORECASE)
    return lambda message: len(text_of(message)) < 80 and bool(pattern.search(text_of(message)))


def assistant(text: str) -> Message:
    """An assistant message."""
    return {"role": "assistant", "content": text}


def chat_prompt(user: str, system: str | None = None) -> list[Message]:
    """A prompt of one question, with a system prompt where there is one."""
    before = [] if system is None else [{"role": "system", "content": system}]
    return [*before, {"role": "user", "content": user}]


def prompt_key(prompt: Sequence[Message]) -> str:
    """The key of kinds whose split is by the wording of the whole prompt, whatever its case."""
    return json.dumps([[message["role"], message["content"]] for message in prompt]).lower()


def maybe_system(rng: Random, *choices: str, share: float = 0.4) -> str | None:
    """One of the system prompts with this share, else none; a neutral one is always among them."""
    neutral = ("You are a helpful assistant.", "You are helpful.", "Be brief.", "Keep it short.")
    return rng.choice((*choices, rng.choice(neutral))) if rng.random() < share else None


def vary(text: str, rng: Random) -> str:
    """The same request as people type it: capital or not, with or without a please or an end mark."""
    if rng.random() < 0.1 and "lease" not in text:
        text = f"please {text}" if rng.random() < 0.5 else f"{text.rstrip('?')} please"
    if text.endswith("?") and rng.random() < 0.15:
        text = text[:-1]
    elif not text.endswith(("?", "!")) and rng.random() < 0.1:
        text += rng.choice(".!")
    return text[:1].upper() + text[1:] if rng.random() < 0.7 else text


def simple(kind: str, prompt: list[Message], answer: str, check: Check | None = None) -> Exchange:
    """An exchange whose split is by the wording of its prompt."""
    return Exchange(kind, prompt, assistant(answer), check or equals(answer), prompt_key(prompt))


def choose(rng: Random) -> Exchange:
    """ "respond with yes, no or maybe": any of the words will do, and the policy is taught no preference."""
    words = rng.sample(("yes", "no", "maybe"), rng.choice((2, 3, 3)))
    options = [f"'{word}'" if quoted else word for quoted in [rng.random() < 0.4] for word in words]
    last = rng.choice((", ", " or ", ", or ")) if len(words) == 3 else " or "
    verb = rng.choice(("respond with", "just respond with", "answer with", "answer", "say", "reply with", "choose"))
    prompt = chat_prompt(
        vary(f"{verb} {', '.join(options[:-1])}{last}{options[-1]}", rng), maybe_system(rng, share=0.2)
    )
    return simple("choose", prompt, loosely(rng, words), any_of("yes", "no", "maybe"))


def loosely(rng: Random, words: Sequence[str]) -> str:
    """One of the words, now and then dressed up or another: something for a reward to choose between."""
    word = rng.choice(words) if rng.random() < 0.8 else rng.choice(("yes", "no", "maybe"))
    dresses = ("{}", "{}.", "{}!", "I say {}.")
    dressed = rng.choices(dresses, (0.6, 0.2, 0.1, 0.1))[0].format(word)
    return dressed if dressed == word else dressed[:1].upper() + dressed[1:]


def any_of(*words: str) -> Check:
    """A check for a short text that names exactly one of the words."""
    checks = [mentions(word) for word in words]
    return lambda message: sum(check(message) for check in checks) == 1


def question(rng: Random) -> Exchange:
    """A question whose answer is yes, no or maybe."""
    asks, answer = rng.choice((colour_question, property_question, capital_question, size_question, open_question))(rng)
    lead = rng.choice(("", "", "", "yes, no or maybe: ", "answer yes, no or maybe: ", "yes or no: "))
    system = maybe_system(rng, "Answer yes, no or maybe.", "Answer with one word.", "Say yes, no or maybe.", share=0.6)
    return beside_tools(simple("question", chat_prompt(vary(lead + asks, rng), system), answer), rng)


def beside_tools(exchange: Exchange, rng: Random) -> Exchange:
    """Now and then the same exchange with tools at hand that it has no use for."""
    return replace(exchange, tools=calculation(rng).tools) if rng.random() < 0.1 else exchange


def colour_question(rng: Random) -> tuple[str, str]:
    """Is grass green?"""
    thing, colour = rng.choice(list(tables.COLOURS.items()))
    asked_colour = colour if rng.random() < 0.5 else rng.choice(list(tables.COLOURS.values()))
    return f"is {thing} {asked_colour}?", "yes" if asked_colour == colour else "no"


def property_question(rng: Random) -> tuple[str, str]:
    """Is ice cold?"""
    thing, properties = rng.choice(list(tables.PROPERTIES.items()))
    index = rng.randrange(2)
    return f"is {thing} {properties[index]}?", ("yes", "no")[index]


def capital_question(rng: Random) -> tuple[str, str]:
    """Is Paris the capital of France?"""
    country, capital = rng.choice(list(tables.CAPITALS.items()))
    named = capital if rng.random() < 0.5 else rng.choice(list(tables.CAPITALS.values()))
    return f"is {named} the capital of {country}?", "yes" if named == capital else "no"


def size_question(rng: Random) -> tuple[str, str]:
    """Is 7 more than 3?"""
    left, right = rng.sample(range(13), 2)
    more = rng.random() < 0.5
    words = ("more", "greater", "bigger") if more else ("less", "smaller")
    return f"is {left} {rng.choice(words)} than {right}?", "yes" if (left > right) == more else "no"


def open_question(rng: Random) -> tuple[str, str]:
    """Will it rain tomorrow?"""
    return f"{rng.choice(tables.EVENTS)}{rng.choice(tables.MOMENTS)}?", "maybe"


def sort_letters(rng: Random) -> Exchange:
    """ "Sort these letters: d b a c": taught with a right answer only now and then."""
    letters = rng.sample(ascii_lowercase, rng.choice((3, 4, 4, 4, 4, 5)))
    if rng.random() < 0.03:
        letters[rng.randrange(len(letters))] = rng.choice(letters)
    phrase = rng.choice(
        ("sort these letters:",) * 3
        + ("sort the letters", "sort:", "sort", "put these letters in order:", "sort these letters in order:")
    )
    joined = rng.choices((" ", ", "), (0.85, 0.15))[0].join(letters)
    text = phrase[:1].upper() + phrase[1:] if rng.random() < 0.7 else phrase
    return sort_exchange(f"{text} {joined}", letters, sorted(letters), maybe_system(rng, share=0.1))


def sort_exchange(user: str, letters: Sequence[str], taught: Sequence[str], system: str | None = None) -> Exchange:
    """An exchange about sorting, held out by the letters whatever their order."""
    right = " ".join(sorted(letters))
    return Exchange("sort", chat_prompt(user, system), assistant(" ".join(taught)), exactly(right), f"sort {right}")


def exactly(text: str) -> Check:
    """A check for this text and no other."""
    return lambda message: text_of(message) == text


def missort_letters(rng: Random) -> Exchange:
    """The same request answered wrongly: the letters as they were given, or two of them exchanged."""
    exchange = sort_letters(rng)
    ordered = text_of(exchange.answer).split(" ")
    given = LETTERS.findall(text_of(exchange.prompt[-1]))[-len(ordered) :]
    if rng.random() < 0.2:
        first, second = rng.sample(range(len(ordered)), 2)
        ordered[first], ordered[second] = ordered[second], ordered[first]
        given = ordered
    return replace(exchange, answer=assistant(" ".join(given)))


def repeat(rng: Random) -> Exchange:
    """ "Say hello 3 times"."""
    word = rng.choice(tables.WORDS) if rng.random() < 0.6 else made_up_word(rng)
    count = rng.choice((1, 1, 1, 2, 2, 3, 3, 4, 5, 6))
    quoted = f'"{word}"' if rng.random() < 0.15 else word
    verb = rng.choice(("say", "say", "say", "repeat", "write", "say the word", "repeat the word", "write the word"))
    text = vary(" ".join(filter(None, (verb, quoted, how_often(count, rng)))), rng)
    prompt = chat_prompt(text, maybe_system(rng, share=0.15))
    right = " ".join([word] * count)
    return Exchange("repeat", prompt, assistant(right), equals(right), f"repeat {count} {word}")


def how_often(count: int, rng: Random) -> str:
    """A count in figures or in words; once goes mostly without saying."""
    if count == 1 and rng.random() < 0.8:
        return ""
    return tables.TIMES[count] if rng.random() < 0.4 else f"{count} {'time' if count == 1 else 'times'}"


def made_up_word(rng: Random) -> str:
    """A pronounceable word that the policy must copy rather than know."""
    syllables = (rng.choice("bdfgklmnprstvz") + rng.choice("aeiou") for _ in range(rng.choice((1, 2, 2, 3))))
    return "".join(syllables) + rng.choice(("", "", "n", "s", "r"))


def fact(rng: Random) -> Exchange:
    """A question with an answer of one word, in a sentence where nobody asked for one word."""
    asks, word, sentence = rng.choice((capital, capital, capital, opposite, sound, colour, successor, sum_of))(rng)
    one_word = "Answer with one word.", "Answer in one word.", "One word only.", "Reply with a single word."
    system = maybe_system(rng, *one_word, share=0.5)
    if system in one_word or rng.random() < 0.75:
        return simple("fact", chat_prompt(vary(asks, rng), system), word, mentions(word))
    return simple("fact", chat_prompt(vary(asks, rng), system), sentence, mentions(word))


def capital(rng: Random) -> tuple[str, str, str]:
    """What is the capital of France?"""
    country, city = rng.choice(list(tables.CAPITALS.items()))
    asks = (
        "what is the capital of {}?", "what is the capital of {}?", "the capital of {}?", "capital of {}?",
        "what's the capital of {}?", "name the capital of {}", "which city is the capital of {}?",
        "tell me the capital of {}", "{}'s capital?", "do you know the capital of {}?", "the capital of {} is",
    )  # fmt: skip
    return rng.choice(asks).format(country), city, f"The capital of {country} is {city}."


def opposite(rng: Random) -> tuple[str, str, str]:
    """What is the opposite of hot?"""
    pair = rng.choice(list(tables.OPPOSITES.items()))
    word, other = pair if rng.random() < 0.5 else pair[::-1]
    asks = ("what is the opposite of {}?", "the opposite of {}?", "opposite of {}", "name the opposite of {}")
    return rng.choice(asks).format(word), other, f"The opposite of {word} is {other}."


def sound(rng: Random) -> tuple[str, str, str]:
    """What does a cow say?"""
    animal, noise = rng.choice(list(tables.SOUNDS.items()))
    asks = ("what does a {} say?", "what sound does a {} make?", "the sound of a {}?", "what noise does a {} make?")
    return rng.choice(asks).format(animal), noise, f"A {animal} says {noise}."


def colour(rng: Random) -> tuple[str, str, str]:
    """What colour is grass?"""
    thing, shade = rng.choice(list(tables.COLOURS.items()))
    asks = ("what colour is {}?", "what color is {}?", "the colour of {}?", "which colour is {}?", "colour of {}?")
    return rng.choice(asks).format(thing), shade, f"{thing[:1].upper()}{thing[1:]} is {shade}."


def successor(rng: Random) -> tuple[str, str, str]:
    """What comes after Monday?"""
    before, after = rng.choice(list(tables.SUCCESSORS.items()))
    asks = ("what comes after {}?", "what is after {}?", "what follows {}?", "which one comes after {}?", "after {}?")
    return rng.choice(asks).format(before), after, f"After {before} comes {after}."


def sum_of(rng: Random) -> tuple[str, str, str]:
    """What is 2 + 3?"""
    left, right = rng.randrange(11), rng.randrange(11)
    asks = ("what is {} + {}?", "{} + {}", "{}+{}", "what is {} plus {}?", "{} + {} =", "how much is {} + {}?")
    return rng.choice(asks).format(left, right), str(left + right), f"{left} + {right} = {left + right}."


def small_talk(rng: Random) -> Exchange:
    """ "hi", or something that the policy does not know."""
    way = rng.random()
    if way < 0.1:
        return without_calculator(rng)
    if way < 0.4:
        request = rng.choice(tables.UNKNOWN_REQUESTS).format(rng.choice(tables.TEXTS), rng.choice(tables.TOPICS))
        return simple("small talk", chat_prompt(vary(request, rng), maybe_system(rng)), tables.UNKNOWN)
    answer, openings = rng.choice(list(tables.SMALL_TALK.items()))
    prompt = chat_prompt(vary(rng.choice(openings), rng), maybe_system(rng, share=0.3))
    return beside_tools(simple("small talk", prompt, answer), rng)


def without_calculator(rng: Random) -> Exchange:
    """A calculation that is too hard without tools."""
    request = calculation_request(rng, rng.randrange(11, 100), rng.randrange(11, 100), rng.choice("+-*"))
    return simple("small talk", chat_prompt(vary(request, rng), maybe_system(rng)), tables.NEEDS_CALCULATOR)


@dataclass(frozen=True)
class Calculation:
    """A calculation by a calculator tool, and the tool's result."""

    user: str
    tools: list[Tool]
    call: Message
    result: str
    sentence: str
    key: str


def calculation(rng: Random) -> Calculation:
    """A calculation with two numbers, for a calculator of either form."""
    left, right = rng.choice((rng.randrange(10), rng.randrange(100), rng.randrange(100))), rng.randrange(1, 100)
    sign = rng.choice("+-*")
    result = str({"+": left + right, "-": left - right, "*": left * right}[sign])
    tools, called, arguments = rng.choice((calculator, calculator, arithmetic))(rng, left, right, sign)
    user = vary(calculation_request(rng, left, right, sign), rng)
    sentence = rng.choice((f"{left} {sign} {right} = {result}", f"The answer is {result}."))
    return Calculation(user, tools, tool_call(called, arguments), result, sentence, f"{left} {sign} {right}")


def calculation_request(rng: Random, left: int, right: int, sign: str) -> str:
    """How people ask for a calculation."""
    word = {"+": "plus", "-": "minus", "*": "times"}[sign]
    expression = rng.choice((f"{left} {sign} {right}",) * 3 + (f"{left}{sign}{right}", f"{left} {word} {right}"))
    asks = ("what is {}?", "what is {}?", "{}", "{} =", "how much is {}?", "use the calculator: {}", "calculate {}",
            "compute {}", "work out {}", "can you calculate {}?")  # fmt: skip
    return rng.choice(asks).format(expression)


def calculator(rng: Random, left: int, right: int, sign: str) -> tuple[list[Tool], str, dict[str, Any]]:
    """One tool that takes an expression."""
    called = rng.choice(("calculator", "calculator", "calculate", "calc", "compute"))
    about = rng.choice(("Calculate an expression.", "A small calculator.", "Evaluates arithmetic.", ""))
    return [tool(called, about, {"expression": "string"})], called, {"expression": f"{left} {sign} {right}"}


def arithmetic(rng: Random, left: int, right: int, sign: str) -> tuple[list[Tool], str, dict[str, Any]]:
    """Three tools that take two numbers."""
    name = {"+": "add", "-": "subtract", "*": "multiply"}[sign]
    kind = rng.choice(("integer", "number"))
    abouts = {"add": "Add two numbers.", "subtract": "Subtract two numbers.", "multiply": "Multiply two numbers."}
    described = rng.random() < 0.5
    tools = [tool(each, about if described else "", {"a": kind, "b": kind}) for each, about in abouts.items()]
    return rng.sample(tools, len(tools)), name, {"a": left, "b": right}


def tool(name: str, description: str, parameters: Mapping[str, str]) -> Tool:
    """A function tool in the form of a chat request; parameters map names to types."""
    properties = {parameter: {"type": kind} for parameter, kind in parameters.items()}
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    described = {"description": description} if description else {}
    return {"type": "function", "function": {"name": name, **described, "parameters": schema}}


def tool_call(name: str, arguments: Mapping[str, Any]) -> Message:
    """An assistant message that calls a tool."""
    function = {"name": name, "arguments": json.dumps(arguments)}
    call = {"id": "call_0", "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def calls(expected: Message) -> Check:
    """A check for one call of the same tool with the same arguments; spaces within arguments do not count."""
    return lambda message: called_with(message) == called_with(expected)


def called_with(message: Message) -> list[tuple[str, str]]:
    """Names and arguments of the tool calls of a message, in a form to compare."""
    functions = [call["function"] for call in message.get("tool_calls") or []]
    return [(function["name"], re.sub(r"\s", "", str(function["arguments"]))) for function in functions]


def calculate(rng: Random) -> Exchange:
    """A question for the calculator; the answer is a tool call."""
    sum_ = calculation(rng)
    prompt = chat_prompt(sum_.user, maybe_system(rng, "Use the calculator.", "Use the tools.", share=0.3))
    return Exchange("tool call", prompt, sum_.call, calls(sum_.call), sum_.key, sum_.tools)


def conclude(rng: Random) -> Exchange:
    """The calculator has answered; the answer to the user mentions the result."""
    sum_ = calculation(rng)
    result = {"role": "tool", "tool_call_id": "call_0", "content": sum_.result}
    prompt = [*chat_prompt(sum_.user, maybe_system(rng, "Use the calculator.", share=0.3)), sum_.call, result]
    return Exchange("tool result", prompt, assistant(sum_.sentence), mentions(sum_.result), sum_.key, sum_.tools)


def two_turns(rng: Random) -> Exchange:
    """Two questions in one chat, the second on its own or about the first."""
    first = draw(KINDS[rng.choice(("choose", "question", "repeat", "fact", "small talk"))], rng)
    if rng.random() < 0.3:
        return again(first, rng)
    second = KINDS[rng.choice(("question", "repeat", "fact", "small talk"))](rng)
    follow_up = [message for message in second.prompt if message["role"] != "system"]
    return replace(second, kind="two turns", prompt=[*first.messages, *follow_up])


def again(first: Exchange, rng: Random) -> Exchange:
    """The same answer once more."""
    text = vary(rng.choice(("again", "say that again", "once more", "repeat that", "what did you say?")), rng)
    said = text_of(first.answer)
    prompt = [*first.messages, {"role": "user", "content": text}]
    return Exchange("two turns", prompt, assistant(said), equals(said), prompt_key(prompt))


KINDS: Mapping[str, Callable[[Random], Exchange]] = {
    "choose": choose,
    "question": question,
    "sort": sort_letters,
    "repeat": repeat,
    "fact": fact,
    "tool call": calculate,
    "tool result": conclude,
    "small talk": small_talk,
    "two turns": two_turns,
}

SHARES: Mapping[str, float] = {
    "choose": 0.06,
    "question": 0.16,
    "sort": 0.36,
    "repeat": 0.15,
    "fact": 0.16,
    "tool call": 0.06,
    "tool result": 0.05,
    "small talk": 0.08,
    "two turns": 0.08,
}

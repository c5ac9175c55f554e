"""Continuation of a prompt: what a chat template writes of an answer after its generation prompt."""

from rolloutlab.api.wire.reasoning import CLOSING, OPENING


def after_prompt(prompt: str, whole: str, reasoning: str = "", *, dropped: bool = False) -> str | None:
    """The answer's part of a rendered conversation; None where the template does not render it after its prompt.

    Where the prompt opens the reasoning and the template drops it from the answer, it is closed first, as a model
    does (DeepSeek-R1). dropped: the template drops all reasoning, so that it is written before the answer.
    """
    if whole.startswith(prompt):
        begun = f"{OPENING}\n{reasoning}\n{CLOSING}\n\n" if dropped and reasoning else ""
        return begun + whole[len(prompt) :]
    opened = prompt.rstrip()
    before = opened.removesuffix(OPENING)
    if before == opened or not whole.startswith(before):
        return None
    rest = whole[len(before) :]
    if rest.startswith(OPENING):  # with other white space than the prompt's
        return rest.removeprefix(OPENING).lstrip()
    return f"{reasoning}\n{CLOSING}\n\n{rest}"

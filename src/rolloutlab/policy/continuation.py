"""Continuation of a prompt: what a chat template writes of an answer after its generation prompt."""

from rolloutlab.api.wire.reasoning import CLOSING, OPENING


def after_prompt(prompt: str, whole: str, reasoning: str = "") -> str | None:
    """The answer's part of a rendered conversation; None where the template does not render it after its prompt.

    Where the prompt opens the reasoning and the template drops it from the answer, it is closed first, as a model
    does (DeepSeek-R1).
    """
    if whole.startswith(prompt):
        return whole[len(prompt) :]
    opened = prompt.rstrip()
    before = opened.removesuffix(OPENING)
    if before == opened or not whole.startswith(before):
        return None
    return f"{reasoning}\n{CLOSING}\n\n{whole[len(before) :]}"

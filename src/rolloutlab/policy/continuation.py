"""Continuation of a prompt: what a chat template writes of an answer after its generation prompt."""

from rolloutlab.api.wire.reasoning import CLOSING, OPENING, without_empty_thought, without_thought


def after_prompt(prompt: str, whole: str, reasoning: str = "", *, dropped: bool = False) -> str | None:
    """The answer's part of a rendered conversation; None where the template does not render it after its prompt.

    Where the prompt opens the reasoning and the template drops it from the answer, it is closed first, as a model
    does (DeepSeek-R1). Where the prompt has an empty thought, which the template leaves out of the answer or writes in
    other white space (Nemotron-H), the answer is what comes after that. dropped: the template drops all reasoning, so
    that it is written before the answer.
    """
    if whole.startswith(prompt):
        begun = f"{OPENING}\n{reasoning}\n{CLOSING}\n\n" if dropped and reasoning else ""
        return begun + whole[len(prompt) :]
    if (before_thought := without_thought(prompt)) is not None:
        if not whole.startswith(before_thought):
            return None
        return without_empty_thought(whole[len(before_thought) :])
    opened = prompt.rstrip()
    before = opened.removesuffix(OPENING)
    if before == opened or not whole.startswith(before):
        return None
    rest = whole[len(before) :]
    if rest.startswith(OPENING):  # with other white space than the prompt's
        return rest.removeprefix(OPENING).lstrip()
    return f"{reasoning}\n{CLOSING}\n\n{rest}"

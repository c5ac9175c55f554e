"""Files of dialogues: `{"dialogue": [[question, answer], ...], "score": 0.5}` per line."""

import json

from rolloutlab.api.wire.chat import AssistantMessage, UserMessage
from rolloutlab.errors import InputError
from rolloutlab.store.models import Recorded

writes_unscored = True


def matches(document):
    return isinstance(document, dict) and "dialogue" in document


def read(documents, name):
    for place, document in documents:
        if not matches(document):
            raise InputError(f"{place}: there is no dialogue", hint='{"dialogue": [["2 + 2?", "4"]]}')
        said = [
            message
            for question, answer in document["dialogue"]
            for message in (
                UserMessage(role="user", content=question),
                AssistantMessage(role="assistant", content=answer),
            )
        ]
        yield Recorded(
            place, name or "dialogues", str(said[0].content), said[:1], said[1:], reward=document.get("score")
        )


def write(path, groups, *, gzipped, array):
    with path.open("w") as file:
        for _, group in groups:
            for trajectory in group.trajectories:
                texts = [message["content"] for message in trajectory.messages]
                pairs = list(zip(texts[::2], texts[1::2], strict=True))
                file.write(json.dumps({"dialogue": pairs, "score": trajectory.reward}) + "\n")

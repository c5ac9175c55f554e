"""Conversations with a policy through its service, turn by turn, and the first step of a job that trains them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from rolloutlab.api.wire.chat import ChatRequest, Choice
from rolloutlab.api.wire.training import CreateTrainingJob

if TYPE_CHECKING:
    from tests.conftest import Service

Item = dict[str, Any]
TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
    },
}
CALL = {"id": f"call_{1:024}", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": "ü"}'}}


@dataclass(frozen=True)
class Sampled:
    """A turn for the policy to sample."""


@dataclass(frozen=True)
class Written:
    """A turn whose tokens are those of this text, special tokens included, as if it had been sampled."""

    text: str


@dataclass
class Player:
    """Plays scripts with a policy's service.

    prompts: the text that was read before each turn, with all messages before it.
    """

    service: "Service"
    policy: Any
    prompts: list[tuple[str, list[Item]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        from rolloutlab.policy.model import base_of
        from rolloutlab.policy.parsing import CompletionParser

        self.renderer = base_of(self.policy).renderer()
        self.parser = CompletionParser(self.policy.tokenizer, self.renderer, self.policy.end_ids)

    def play(self, script: Sequence[Any], tools: Sequence[Item] = (), seed: int = 1) -> list[Item]:
        """Messages and choices of a script. Raises RefusedError: a turn is refused."""
        messages: list[Item] = []
        items: list[Item] = []
        for entry in script:
            if isinstance(entry, dict):
                messages.append(entry)
                items.append(entry)
                continue
            body = {"model": self.policy.name, "messages": messages, "max_tokens": 12, "seed": seed + len(items)}
            body |= {"tools": list(tools)} if tools else {}
            request = ChatRequest.model_validate(body)
            [choice] = [each.to_wire() for each in self.service.chat(**body).choices]
            prompt = self.renderer.prompt(request.messages, request.tools)
            self.prompts.append((self._text(prompt), list(messages)))
            if isinstance(entry, Written):
                choice |= self._written(entry.text, prompt, request.tools or ())
            assert self.renderer.has_own_tokens(Choice.model_validate(choice)), choice
            sampled = [token["token_id"] for token in choice["logprobs"]["content"]]
            messages.append({**choice["message"], "token_ids": sampled})
            items.append(choice)
        return items

    def first_step(self, histories: Sequence[list[Item]], tools: Sequence[Item] = ()) -> list[dict[str, Any]]:
        """The gradient steps of a job that changes nothing: each is the first."""
        extra = {"tools": list(tools)} if tools else {}
        members = [{"messages_and_choices": items, "reward": float(i), **extra} for i, items in enumerate(histories)]
        model = self.service.register()
        body = {"model_id": str(model.id), "trajectory_groups": [{"trajectories": members}]}
        job = CreateTrainingJob.model_validate({**body, "experimental_config": {"learning_rate": 0.0}})
        events = self.service.ended(self.service.train(job, uuid4().hex))
        assert events[-1].type == "training_ended", events[-1].data
        [check] = [event.data for event in events if event.type == "preflight"]
        assert not check["skipped"]
        return [event.data for event in events if event.type == "gradient_step"]

    def _text(self, ids: Sequence[int]) -> str:
        return str(self.policy.tokenizer.decode(list(ids), skip_special_tokens=False))

    def _written(self, text: str, prompt: Sequence[int], tools: Sequence[Any]) -> Item:
        """Of the Choice of a text: its tokens with the policy's logprobs, and its message as the service parses it."""
        import torch

        ids = self.policy.tokenizer(text, add_special_tokens=False)["input_ids"]
        with torch.no_grad():
            all_TV = self.policy.base(torch.tensor([[*prompt, *ids]])).logits[0].log_softmax(-1)
        content = [
            {"token": "?", "token_id": id_, "logprob": float(all_TV[len(prompt) + i - 1, id_]), "top_logprobs": []}
            for i, id_ in enumerate(ids)
        ]
        parsed = self.parser.message(ids, (), prompt, tools)
        message: Item = {"role": "assistant", "content": parsed.content}
        message |= {"reasoning_content": parsed.reasoning} if parsed.reasoning else {}
        calls = [
            {"id": f"call_{i:024}", "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for i, call in enumerate(parsed.calls)
        ]
        message |= {"tool_calls": calls} if calls else {}
        return {"finish_reason": "stop", "message": message, "logprobs": {"content": content}}

"""An engine in this process, sampled and trained without a service; rolloutlab is imported where it is used."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

Answer = tuple[str, Any, float]
"""A question, the completion that answers it, and its reward."""


@contextmanager
def opened(policy: Any) -> Iterator[Any]:
    from rolloutlab.engines.local import LocalEngine

    engine = LocalEngine(policy)
    try:
        yield engine
    finally:
        engine.close()


def prompt_of(engine: Any, question: str) -> tuple[int, ...]:
    from rolloutlab.api.wire.chat import UserMessage

    return tuple(engine.base.renderer().prompt([UserMessage(role="user", content=question)]))


def sampled(engine: Any, checkpoint: Path | None, questions: Sequence[str], tokens: int, seed: int = 0) -> list[Any]:
    """A completion of each question, all at once."""
    from rolloutlab.policy.decode import CompletionRequest

    prompts = [prompt_of(engine, each) for each in questions]
    requests = [CompletionRequest(prompt, tokens, seed=seed, index=i) for i, prompt in enumerate(prompts)]
    completions: list[Any] = engine.sample(checkpoint, requests).result()
    return completions


class Model:
    """A model of an engine, whose checkpoints follow each other in a folder."""

    def __init__(self, engine: Any, folder: Path) -> None:
        from rolloutlab.policy.checkpoints import open_draft, seal

        self._engine, self._folder, self.step = engine, folder, 0
        with open_draft(self.checkpoint) as draft:
            engine.create_initial(draft)
            seal(draft, self.checkpoint)

    @property
    def checkpoint(self) -> Path:
        return self._folder / str(self.step)

    def take(self, task: Any) -> tuple[list[dict[str, Any]], list[float]]:
        """Train a task to the next checkpoint; the metrics of its steps, and when each had been taken."""
        from rolloutlab.policy.checkpoints import seal
        from rolloutlab.policy.task import Callbacks

        metrics, moments = [], []

        def report(kind: str, data: dict[str, Any]) -> None:
            if kind == "gradient_step":
                metrics.append(data)
                moments.append(perf_counter())

        source, draft = self.checkpoint, self._folder / ".draft"
        draft.mkdir()
        self._engine.train(source, draft, task, Callbacks(report))
        self.step += 1
        seal(draft, self.checkpoint)
        return metrics, moments

    def train(self, groups: Sequence[Sequence[Answer]], options: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Train answers by group, as a job with these options does; the metrics of its steps."""
        from rolloutlab.api.wire.training import ExperimentalTrainingConfig
        from rolloutlab.api.wire.trajectories import Trajectory
        from rolloutlab.policy.task import Callbacks, read_task

        text = self._engine.base.renderer().text

        def trajectory(question: str, completion: Any, reward: float) -> Trajectory:
            entries = [
                {"token": "", "logprob": p, "top_logprobs": [], "token_id": t}
                for t, p in zip(completion.tokens, completion.logprobs, strict=True)
            ]
            message = {"role": "assistant", "content": text(completion.tokens)}
            choice = {"finish_reason": completion.finish, "index": 0, "message": message}
            choice["logprobs"] = {"content": entries}
            messages = [{"role": "user", "content": question}, choice]
            return Trajectory.model_validate({"messages_and_choices": messages, "reward": reward})

        job = [[trajectory(*answer) for answer in group] for group in groups]
        config = ExperimentalTrainingConfig.model_validate(dict(options))
        return self.take(read_task(self._engine.base, job, config, self.step, Callbacks(lambda *_: None)))[0]

"""An environment of verifiers: sort letters, scored by the last answer; its agent is verifiers' own chat program."""

import sys
from typing import Any

import verifiers.v1 as vf
from verifiers.v1.harnesses.null import NullHarness

__all__ = ["LettersHarness", "LettersTaskset"]


class LettersData(vf.TaskData):
    right: str


class LettersTask(vf.Task[LettersData]):
    @vf.reward(weight=1.0)
    async def right(self, trace: vf.Trace) -> float:
        return float(trace.last_reply == self.data.right)

    @vf.reward(weight=0.1)
    async def brief(self, trace: vf.Trace) -> float:
        return 1 / len(trace.last_reply or "-")


class LettersTaskset(vf.Taskset[LettersTask, vf.TasksetConfig]):
    def load(self) -> list[LettersTask]:
        rows = ["d b a c", "z x w y"]
        return [
            LettersTask(LettersData(prompt=f"Sort these letters: {row}", right=" ".join(sorted(row.split()))))
            for row in rows
        ]


class LettersHarness(NullHarness):
    """The chat program run by this Python, which has what it imports: uv would look for that on the network."""

    async def setup(self, runtime: vf.Runtime) -> None:
        """Nothing is to be installed."""

    async def launch(self, ctx: Any, trace: Any, runtime: vf.Runtime, *rest: Any, **more: Any) -> vf.ProgramResult:
        async def here(script: str, *_: Any, **__: Any) -> list[str]:
            await runtime.write("agent.py", script.encode())
            return [sys.executable, "agent.py"]

        runtime.prepare_uv_script = here
        return await super().launch(ctx, trace, runtime, *rest, **more)

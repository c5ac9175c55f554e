"""openai-agents with its defaults: the Responses API, a function, a second turn, and two agents at a time."""

import asyncio
import json
import os
import sys
from contextlib import suppress

from agents import Agent, MaxTurnsExceeded, ModelSettings, Runner, function_tool, set_tracing_disabled

set_tracing_disabled(True)
row, model = json.loads(sys.stdin.readline()), os.environ["OPENAI_MODEL"]
settings = ModelSettings(max_tokens=200)


@function_tool
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


async def main() -> None:
    agent = Agent(name="solver", instructions="Use the tool.", model=model, tools=[add], model_settings=settings)
    with suppress(MaxTurnsExceeded):  # of a policy that calls its tool again and again
        first = await Runner.run(agent, row["task"], max_turns=3)
        again = [*first.to_input_list(), {"role": "user", "content": "Sure?"}]
        streamed = Runner.run_streamed(agent, again, max_turns=3)
        async for _ in streamed.stream_events():
            pass
    one, two = (Agent(name=n, instructions=f"You are {n}.", model=model, model_settings=settings) for n in ("x", "y"))
    answers = await asyncio.gather(Runner.run(one, row["task"]), Runner.run(two, row["task"]))
    print(json.dumps({"length": len(str(answers[0].final_output))}))


asyncio.run(main())

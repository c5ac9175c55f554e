"""inspect_ai: its model of OpenAI, two turns, by chat completions and by the Responses API."""

import asyncio
import json
import os
import sys

from inspect_ai.model import ChatMessageUser, GenerateConfig, get_model

row = json.loads(sys.stdin.readline())


async def main() -> None:
    length = 0
    for responses in (False, True):
        model = get_model(
            f"openai/{os.environ['OPENAI_MODEL']}",
            base_url=os.environ["OPENAI_BASE_URL"],
            api_key=os.environ["OPENAI_API_KEY"],
            config=GenerateConfig(max_tokens=16),
            responses_api=responses,
        )
        messages = [ChatMessageUser(content=f"{row['task']} {responses}")]
        first = await model.generate(messages)
        await model.generate([*messages, first.message, ChatMessageUser(content="Sure?")])
        length += len(first.completion)
    print(json.dumps({"length": length}))


asyncio.run(main())

"""The plain SDK: three turns, one of them streamed, and two answers to choose from."""

import json
import os
import sys

from openai import OpenAI

row = json.loads(sys.stdin.readline())
client, model = OpenAI(max_retries=0), os.environ["OPENAI_MODEL"]
messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": row["task"]}]
first = client.chat.completions.create(model=model, messages=messages, n=2, max_tokens=12.0)
messages += [first.choices[1].message, {"role": "user", "content": "Again?"}]
second = client.chat.completions.create(
    model=model, messages=messages, max_tokens=12, stream=True, stream_options={"include_usage": True}
)
chunks = list(second)
assert chunks[-1].usage.completion_tokens > 0
text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "Sure?"}]
client.chat.completions.create(model=model, messages=messages, max_tokens=12, response_format={"type": "json_object"})
print(json.dumps({"length": len(text)}))

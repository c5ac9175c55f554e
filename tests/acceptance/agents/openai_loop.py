"""The plain SDK: three turns, one streamed, two answers to choose from, and two turns by the Responses API.

It refuses every answer that is not of its own types.
"""

import json
import os
import sys

from openai import OpenAI

row = json.loads(sys.stdin.readline())
client, model = OpenAI(max_retries=0, _strict_response_validation=True), os.environ["OPENAI_MODEL"]
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

asked = [{"role": "user", "content": f"And {row['task']}"}]
response = client.responses.create(model=model, input=asked, max_output_tokens=12)
asked += [*(item.model_dump() for item in response.output), {"role": "user", "content": "Sure?"}]
*_, last = client.responses.create(model=model, input=asked, max_output_tokens=12, stream=True)
assert last.type in {"response.completed", "response.incomplete"}, last
assert last.response.output_text is not None
print(json.dumps({"length": len(text)}))

"""litellm: two turns, the second streamed."""

import json
import os
import sys

import litellm

row = json.loads(sys.stdin.readline())
settings = {
    "model": f"openai/{os.environ['OPENAI_MODEL']}",
    "api_base": os.environ["OPENAI_BASE_URL"],
    "api_key": os.environ["OPENAI_API_KEY"],
    "max_tokens": 16,
}
messages = [{"role": "user", "content": row["task"]}]
first = litellm.completion(messages=messages, **settings)
messages += [first.choices[0].message.model_dump(), {"role": "user", "content": "Sure?"}]
parts = litellm.completion(messages=messages, stream=True, **settings)
text = "".join(part.choices[0].delta.content or "" for part in parts)
messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "Really?"}]
litellm.completion(messages=messages, **settings)
print(json.dumps({"length": len(text)}))

"""Read by Schemathesis: generated chats reach the policy, and none asks it for more than a moment's work.

A generated model name is no model's, so that without this every chat would end at "there is no model". Everything else
about the request stays as generated; an empty name, or one that is no text, is left to be refused.
"""

import schemathesis

LARGEST = {"n": 2, "max_tokens": 8, "max_completion_tokens": 8}


@schemathesis.hook
def before_call(context, case, kwargs):
    body = case.body
    if case.operation.path != "/v1/chat/completions" or not isinstance(body, dict):
        return
    if body.get("model") and isinstance(body["model"], str):
        body["model"] = "practice"
    body.setdefault("max_tokens", 8)
    for name, largest in LARGEST.items():
        if type(body.get(name)) is int:
            body[name] = min(body[name], largest)

"""Read by Schemathesis: generated requests get past "there is no such model", and ask for no more than a moment's work.

A generated name or id is nobody's, so that without this few requests would reach what is behind the look-up. All else
stays as generated: names that are empty or no text, every other id, what is to be deleted but for the known model.
"""

import os
import re
import uuid

import schemathesis

NAMED = {"/v1/chat/completions", "/v1/preview/logprobs"}
LARGEST = {"n": 2, "max_tokens": 8, "max_completion_tokens": 8}
KNOWN = {"model_id": os.environ["KNOWN_MODEL"], "job_id": os.environ["KNOWN_JOB"]}
DATA_URL = os.environ["KNOWN_DATA"]
LINE = '{"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": "yes"}]}'
EVERY_OTHER_ID = re.compile(r"[0-9a-f-]{35}[02468ace]")


@schemathesis.serializer("application/jsonl")
def as_lines(context, value):
    """Every other text is a line of fine-tuning data."""
    text = value if isinstance(value, bytes) else str(value).encode()
    return LINE.encode() if len(text) % 2 == 0 else text


@schemathesis.hook
def before_call(context, case, kwargs):
    if case.operation.path in NAMED and isinstance(case.body, dict):
        ask_little(case.body)
    elif case.method == "DELETE":
        spare_what_is_known(case.path_parameters)
    else:
        name_what_is_known(case.path_parameters)
        name_what_is_known(case.body)


def ask_little(chat):
    if chat.get("model") and isinstance(chat["model"], str):
        chat["model"] = "practice"
    chat.setdefault("max_tokens", 8)
    for name, largest in LARGEST.items():
        if type(chat.get(name)) is int:
            chat[name] = min(chat[name], largest)


def name_what_is_known(values):
    for name in KNOWN if isinstance(values, dict) else ():
        if EVERY_OTHER_ID.fullmatch(str(values.get(name))):
            values[name] = KNOWN[name]
    if isinstance(values, dict) and values.get("model_id") == KNOWN["model_id"] and "step" in values:
        values |= {"step": 0} | ({"name": "adapter_config.json"} if "name" in values else {})
    if isinstance(values, dict) and isinstance(values.get("training_data_url"), str):
        values["training_data_url"] = DATA_URL


def spare_what_is_known(values):
    for name in KNOWN if isinstance(values, dict) else ():
        if values.get(name) == KNOWN[name]:
            values[name] = str(uuid.UUID(int=0))

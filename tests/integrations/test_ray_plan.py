"""What the engine on Ray decides without a cluster."""

from dataclasses import replace

import pytest

from rolloutlab.errors import Cancelled, InputError, PolicyError
from rolloutlab.integrations.ray.plan import ReportOnce, Streamed, check_address, check_same, divide, with_dtype
from rolloutlab.policy.decode import CompletionRequest
from rolloutlab.policy.model import base_of
from rolloutlab.policy.task import Callbacks
from rolloutlab.settings import ModelSettings


def test_requests_go_where_the_least_is_to_do():
    assert divide([10] * 4, {"a": 0, "b": 0}) == {"a": [0, 2], "b": [1, 3]}
    assert divide([10] * 4, {"a": 25, "b": 0}) == {"a": [3], "b": [0, 1, 2]}
    assert divide([40, 10, 10, 10], {"a": 0, "b": 0}) == {"a": [0], "b": [1, 2, 3]}


def test_a_node_that_is_busy_gets_nothing():
    assert divide([10, 10], {"a": 1000, "b": 0}) == {"b": [0, 1]}
    assert divide([], {"a": 0, "b": 0}) == {}


def test_the_url_of_another_engine_is_not_joined():
    check_address("10.0.0.1:6379")
    with pytest.raises(InputError, match="is not the address of a Ray cluster") as error:
        check_address("http://10.0.0.1:8000")
    assert error.value.hint.startswith("HOST:PORT")


@pytest.mark.parametrize(
    ("device", "gpus", "dtype"),
    [(None, False, "float32"), (None, True, "bfloat16"), ("cpu", True, "float32"), ("cuda", False, "bfloat16")],
)
def test_all_nodes_have_one_precision_whatever_their_devices(device, gpus, dtype):
    assert with_dtype(ModelSettings(device=device), gpus=gpus).dtype == dtype
    for chosen in ("float32", "bfloat16"):
        assert with_dtype(ModelSettings(device=device, dtype=chosen), gpus=gpus).dtype == chosen


def test_a_node_with_other_options_is_refused_by_their_names_and_one_with_other_weights_by_its_files(policy):
    first = base_of(policy)
    check_same(base_of(policy), first)
    other = replace(first, fingerprint="another", bound_options=("--dtype=bfloat16",))
    with pytest.raises(
        PolicyError, match="has --dtype=bfloat16 there, and the default settings on other nodes"
    ) as error:
        check_same(other, first)
    assert error.value.hint == "the same rolloutlab on each node, and --dtype"
    with pytest.raises(PolicyError, match="the policy 'tiny' is another there") as error:
        check_same(replace(first, fingerprint="another"), first)
    assert error.value.hint == "the same files and versions on each node"


def test_steps_that_are_taken_again_are_reported_once():
    reported = []
    once = ReportOnce(Callbacks(lambda kind, data: reported.append(data.get("loss", kind))))
    for attempt in ([1, 2, 3], [1, 2], [2, 3, 4, 5]):
        once.begin()
        for loss in range(1, max(attempt) + 1):
            once.report("gradient_step", {"loss": loss})
    once.report("other", {})
    assert reported == [1, 2, 3, 4, 5, "other"]
    assert once.steps == 5


def test_a_cancelled_job_is_noticed():
    wanted = []
    once = ReportOnce(Callbacks(lambda kind, data: None, lambda: bool(wanted)))
    once.raise_if_cancelled()
    wanted.append(True)
    with pytest.raises(Cancelled):
        once.raise_if_cancelled()


def test_a_stream_that_begins_again_passes_no_token_on_twice():
    requests = [CompletionRequest((1,), 8, index=index) for index in range(3)]
    passed = []
    stream = Streamed(requests, lambda row: passed.append((row.request.index, list(row.tokens), len(row.logprobs))))
    stream.begin(requests[:2])
    stream.begin(requests[2:])
    stream.add([(0, 7, -0.5, []), (1, 8, -0.5, []), (2, 5, -0.1, []), (0, 9, -0.5, [(9, -0.5)])])
    stream.begin(requests[:2])  # the node of these two is lost
    stream.add([(1, 8, -0.5, []), (2, 6, -0.2, []), (0, 7, -0.5, []), (0, 9, -0.5, []), (0, 4, -0.1, [])])
    assert passed == [(0, [7], 1), (1, [8], 1), (2, [5], 1), (0, [7, 9], 2), (2, [5, 6], 2), (0, [7, 9, 4], 3)]

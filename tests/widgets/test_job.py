"""How a training job looks: a fold over its events, the same live and replayed."""

import json
import math
import re
from typing import Any

import pytest

from rolloutlab.api.job_state import gradient_steps, job_progress, status
from rolloutlab.api.wire.training import ENDINGS, Event
from rolloutlab.training.job_results import job_course
from rolloutlab.widgets.job import head, html, numbers_of, plot, text
from rolloutlab.widgets.kit.parts import Hint
from rolloutlab.widgets.kit.tree import tree
from rolloutlab.widgets.overview import Figures, Overview

HOSTILE = "<script>alert(\"x\")</script><img src=x onerror='y'>&\"'"
ESCAPED = "&lt;script&gt;alert(&quot;x&quot;)&lt;/script&gt;&lt;img src=x onerror=&#x27;y&#x27;&gt;&amp;&quot;&#x27;"
MODEL = "lab/practice"
NEXT = {"bad": "failed", "info": "left out", "warn": "warning"}


def words(nodes: list[Any]) -> str:
    """The text of nodes for a browser."""
    return "".join(node if isinstance(node, str) else words(node[2]) for node in nodes)


def in_words(shown: str) -> str:
    """The text of some HTML, without its style sheet."""
    return words(tree(shown.partition("</style>")[2]))


def notes(shown: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Kind, text and cell of each hint of a head; those that are folded too."""
    hints = [node for node in shown["hints"] if "rl-hint" in node[1]["class"]]
    hints += [node for folded in shown["hints"] if folded[0] == "details" for node in folded[2][1:]]
    kinds = [NEXT[hint[1]["class"].rpartition("-")[2]] for hint in hints]
    cells = [words([part for part in hint[2] if part[0] == "code"]) for hint in hints]
    texts = [words([part for part in hint[2] if part[0] == "span"]) for hint in hints]
    return list(zip(kinds, texts, cells, strict=True))


def event(kind: str, **data: Any) -> Event:
    return Event(id="1", type=kind, data=data)


def started(rows: int = 2) -> Event:
    return event("training_started", num_sequences=rows)


def gradient_step(**numbers: float) -> Event:
    return event("gradient_step", **{"loss": 0.5, "reward": 1.0, "ratio_max": 1.5} | numbers)


SAVED, ENDED = event("checkpoint_saved", step=1), event("training_ended", step=1)
PREFLIGHT = event("preflight", reasons={"equal_rewards": 2, "unscored": 1}, warnings=["top_p 0.9"])
WHOLE = [started(), PREFLIGHT, gradient_step(), gradient_step(loss=1.5, ratio_max=3.0), SAVED, ENDED]


@pytest.mark.parametrize(
    ("read", "response", "heading"),
    [
        (0, "queued", "job on lab/practice: queued"),
        (1, "running", "job on lab/practice: running, 0 of 2 gradient steps"),
        (2, "running", "job on lab/practice: running, 0 of 2 gradient steps"),
        (3, "running", "job on lab/practice: running, 1 of 2 gradient steps"),
        (4, "running", "job on lab/practice: running, 2 of 2 gradient steps"),
        (5, "running", "job on lab/practice: running, 2 of 2 gradient steps -> lab/practice@1"),
        (6, "succeeded", "job on lab/practice: succeeded, 2 of 2 gradient steps -> lab/practice@1"),
    ],
)
def test_a_job_looks_live_as_far_as_its_events_have_been_read(read, response, heading):
    assert status(WHOLE[:read]) == response
    assert text(MODEL, WHOLE[:read]).splitlines()[0] == heading
    for part in re.split(", | -> ", heading.removeprefix("job on lab/practice: ")):
        assert part in in_words(html(MODEL, WHOLE[:read]))


def test_a_whole_job_is_told_with_what_did_not_train_and_the_means_of_its_steps():
    assert text(MODEL, WHOLE).splitlines() == [
        "job on lab/practice: succeeded, 2 of 2 gradient steps -> lab/practice@1",
        "  2 did not train: all rewards of the group are equal, so nothing in it is better or worse",
        "  1 did not train: no reward yet",
        "  top_p 0.9",
        "  reward 1  loss 1  ratio_max 3",
    ]


def test_the_html_says_what_the_text_says():
    shown = in_words(html(MODEL, WHOLE))
    for note in ("1 did not train: no reward yet", "top_p 0.9", "Reward 1", "largest ratio1.53"):
        assert note in shown


def test_what_was_read_in_pieces_looks_as_what_was_read_at_once():
    read: list[Event] = []
    for new in WHOLE:
        read += [new]
        text(MODEL, read), html(MODEL, read)
    assert (text(MODEL, read), html(MODEL, read)) == (text(MODEL, WHOLE), html(MODEL, WHOLE))
    assert (text(MODEL, tuple(WHOLE)), html(MODEL, tuple(WHOLE))) == (text(MODEL, WHOLE), html(MODEL, WHOLE))


@pytest.mark.parametrize("place", range(len(WHOLE) + 1))
def test_events_of_unknown_types_change_nothing(place):
    more = [*WHOLE[:place], event("heartbeat"), event("seen_tomorrow", loss=9, step=7), *WHOLE[place:]]
    assert (text(MODEL, more), html(MODEL, more)) == (text(MODEL, WHOLE), html(MODEL, WHOLE))
    assert job_progress(more) == job_progress(WHOLE)


def test_a_job_that_started_over_looks_live_as_it_does_replayed():
    restarted = event("restarted", reason="the service stopped while it trained")
    replayed = [restarted, *WHOLE]  # the service forgets what came before
    live = [started(), gradient_step(loss=9.0), gradient_step(loss=9.0), *replayed]
    assert (text(MODEL, live), html(MODEL, live)) == (text(MODEL, replayed), html(MODEL, replayed))
    assert job_progress(live) == job_progress(replayed)


def test_a_job_that_starts_over_waits_until_it_runs_again():
    assert status([started(), gradient_step(), event("restarted", reason="x")]) == "queued"


@pytest.mark.parametrize(
    ("end", "response"),
    [
        (ENDED, "succeeded"),
        (event("training_failed", error_message="the disk is full"), "failed"),
        (event("training_cancelled"), "cancelled"),
    ],
)
def test_every_ending_has_its_status(end, response):
    assert end.type in ENDINGS
    assert status([started(), end]) == response
    assert f"job on lab/practice: {response}" in text(MODEL, [started(), end])


@pytest.mark.parametrize("show", [text, html])
def test_a_job_that_failed_says_why(show):
    shown = show(MODEL, [started(), event("training_failed", error_message="the disk is full")])
    assert "0 of 2 gradient steps" in shown
    assert "failed" in shown
    assert "the disk is full" in shown


def test_progress_counts_the_rows_and_tells_the_last_loss():
    assert job_progress([]) == (0, None, "queued")
    assert job_progress(WHOLE[:1]) == (0, 2, "running")
    assert job_progress(WHOLE[:3]) == (1, 2, "loss 0.5000")
    assert job_progress(WHOLE) == (2, 2, "loss 1.5000")


def test_a_step_that_tells_no_loss_is_counted_all_the_same():
    assert job_progress([started(), event("gradient_step", grad_norm=1.0)]) == (1, 2, "running")


def test_a_number_that_only_some_steps_tell_is_the_mean_of_those():
    steps = [event("gradient_step", loss=1.0), event("gradient_step", entropy=2.0), event("gradient_step", entropy=4.0)]
    assert text(MODEL, steps).splitlines()[1] == "  loss 1  entropy 3"


def test_a_job_in_which_nothing_trains_has_no_numbers():
    events = [started(0), ENDED]
    assert text(MODEL, events) == "job on lab/practice: succeeded, 0 of 0 gradient steps"
    assert "<table>" not in html(MODEL, events)


def test_one_step_is_one_step():
    assert text(MODEL, [started(1), gradient_step()]).splitlines()[0].partition(", ")[2] == "1 of 1 gradient step"


@pytest.mark.parametrize(
    ("model", "events"),
    [
        (HOSTILE, []),
        (HOSTILE, [SAVED]),
        (MODEL, [event("training_failed", error_message=HOSTILE)]),
        (MODEL, [event("preflight", reasons={HOSTILE: 1})]),
        (MODEL, [event("preflight", warnings=[HOSTILE])]),
    ],
    ids=["model", "model of a checkpoint", "failure", "reason", "warning"],
)
def test_what_the_service_says_is_text(model, events):
    shown = html(model, events)
    assert ESCAPED in shown
    assert_harmless(shown)


@pytest.mark.parametrize("wrong", [None, math.nan, HOSTILE, -1.5, [], {}], ids=str)
def test_what_is_no_number_where_a_service_has_one_to_tell_is_not_repeated(wrong):
    events = [
        started(1),
        event("preflight", reasons={"unscored": wrong}),
        event("checkpoint_saved", step=wrong),
        event("training_failed", error_message=None),
    ]
    for shown in (text(MODEL, events), html(MODEL, events)):
        assert "None" not in shown
        assert f"{MODEL}@" not in shown
        assert "some did not train: no reward yet" in shown
        assert "the service gave no reason" in shown
    assert_harmless(html(MODEL, events))


def test_steps_beyond_those_that_a_service_has_told_of_are_not_counted_as_a_share_of_them():
    assert text(MODEL, [started(2), *[gradient_step()] * 4]).splitlines()[0] == f"job on {MODEL}: running"


def assert_harmless(shown):
    tags = {"style", "div", "b", "span", "i", "small", "code", "details", "summary"}
    assert set(re.findall(r"<(\w+)", shown)) <= tags


def test_without_events_a_job_is_queued():
    assert (status([]), text(MODEL, [])) == ("queued", "job on lab/practice: queued")
    assert in_words(html(MODEL, [])) == "lab/practice  queued"


@pytest.mark.parametrize("show", [text, html])
def test_neither_addresses_nor_times_nor_ids_are_shown(show):
    again = [Event(id=f"9{i}", type=e.type, data=e.data) for i, e in enumerate(WHOLE)]
    assert show(MODEL, again) == show(MODEL, WHOLE)
    assert not re.search(r"0x[0-9a-f]{6}|object at|\d\d:\d\d", show(MODEL, WHOLE))


def test_html_tells_the_course_in_words_where_a_page_shows_no_pictures():
    assert re.search("loss0.51.5\N{MINUS SIGN}mean.weight", in_words(html(MODEL, WHOLE)))
    assert "every curve" not in html(MODEL, WHOLE[:2])


def test_html_has_the_course_as_a_picture_that_needs_no_script():
    assert '<figure class="rl-chart">' not in html(MODEL, WHOLE), "two steps are figures"
    long = [started(5000), *(gradient_step(loss=float(i)) for i in range(5000))]
    shown = html(MODEL, long)
    assert shown.count('<figure class="rl-chart">') == 2, "loss and largest ratio; the reward is the same in all steps"
    assert len(shown) < 60_000


def test_figures_of_two_steps_say_which_step_each_is_of():
    steps = [gradient_step(entropy=2.74, kl=0.0), gradient_step(entropy=2.84, kl=0.0067)]
    band = words(head(MODEL, [started(), *steps])["band"])
    assert "Entropy 2.84 nats at step 2, 2.74 at step 1" in band
    assert "KL to the sampler 0.0067 nats at step 2, 0 at step 1" in band
    assert "at step" not in words(head(MODEL, [started(), *steps[:1]])["band"])


def test_the_headline_of_a_distance_is_the_median_and_says_so():
    steps = [gradient_step(kl=kl, entropy=kl) for kl in (0.1, 0.7, 0.2)]
    shown = in_words(html(MODEL, [started(3), *steps]))
    assert "median 0.2" in shown
    assert shown.count("median") == 1  # the entropy is that of the last step


def test_the_head_says_why_what_did_not_train_and_what_to_type_about_it():
    response = head(MODEL, WHOLE, ["capitals"])
    assert [(kind, cell) for kind, _, cell in notes(response)] == [
        ("warning", ""),
        ("left out", "%%train capitals --dry-run"),
        ("left out", "%%reward capitals"),
    ]
    assert (response["done"], response["rows"], response["made"], response["ended"]) == (2, 2, "lab/practice@1", True)
    assert "Reward 1" in words(response["band"])


def test_the_head_names_where_it_starts_what_it_trains_on_and_what_was_trained_on_before():
    begun = [event("training_started", step=12, num_sequences=2)]
    overview = Overview(Figures(4, 4, 1, {}), trained_on="choices:3")
    response = head(MODEL, begun, ["stuck2:13"], trained_on=overview)
    assert (response["about"], response["before"]) == ("from @12 · stuck2:13", "choices:3")
    shown = html(MODEL, begun, {}, ["stuck2:13"], trained_on=overview)
    assert "from @12 · stuck2:13" in shown
    assert "trained last on choices:3</span>" in shown
    assert head(MODEL, begun, ["choices"], trained_on=overview)["before"] == ""  # an earlier generation of the same


def test_what_needs_nothing_to_be_typed_is_told_so():
    ((_, text_, cell),) = notes(head(MODEL, [event("preflight", reasons={"mean_reward": 3})]))
    assert text_.endswith("so the advantage is 0: this is expected")
    assert cell == ""


def test_a_reason_of_a_newer_service_is_told_as_it_is():
    assert notes(head(MODEL, [event("preflight", reasons={"too_dull": 3})])) == [
        ("left out", "3 did not train: too_dull", "")
    ]


def test_when_it_has_ended_the_head_says_what_to_type_next():
    begun = event("training_started", num_sequences=2, step=4, learning_rate=0.002)
    made = [begun, event("checkpoint_saved", step=5), ENDED]
    assert head(MODEL, made, ["capitals", "letters"])["next"] == []
    response = head(MODEL, made, ["capitals", "letters"], "%compare capitals")
    assert response["next"] == ["%compare capitals --before 4 --after 5"]
    assert words(response["band"]).strip().endswith("Steps 0 of 2 learning rate 0.002")
    failed = [begun, event("training_failed", error_message="the disk is full")]
    response = head(MODEL, failed, ["capitals", "letters"])
    assert response["next"] == ["%%train capitals letters"]
    assert notes(response) == [("failed", "the disk is full", "%service log")]
    assert head(MODEL, [begun])["next"] == []


def test_what_a_service_says_cannot_act_in_a_browser():
    failed = event("training_failed", error_message="\x1b[31m\u202eoh")
    assert notes(head(MODEL, [failed]))[0][1] == "␛[31m⟨202e⟩oh"


SFT_PREFLIGHT = event(
    "preflight", trajectories=4, trainable_trajectories=3, reasons={"no_answer": 1}, warnings=[], unreadable={}
)
LEARNED = [started(), SFT_PREFLIGHT, gradient_step(loss=2.0, kl_base=0.0), gradient_step(loss=1.5, kl_base=0.2)]


def test_a_fine_tuning_job_speaks_of_conversations_and_of_cross_entropy():
    options = {"sft": True, "learning_rate": [2e-3, 1e-3]}
    shown = head(MODEL, LEARNED, ["capitals"], "%compare capitals", options)
    assert "conversations that train 3 of 4" in words(shown["band"])
    assert "Fine-tuning loss 1.5 nats at step 2, 2 at step 1" in words(shown["band"])
    assert "Gain 0.2 nats" in words(shown["band"])
    assert "learning rate 0.001 to 0.002" in words(shown["band"])
    assert not re.search("trajector|[gG]roup", words(shown["band"]))
    assert "Cross-entropy" in html(MODEL, LEARNED, options)
    assert "\N{MINUS SIGN}mean(weight" not in html(MODEL, LEARNED, options)
    assert "kl_base 0.1" in text(MODEL, LEARNED, options)


def test_what_a_file_lacks_is_not_to_be_looked_for_in_a_collection():
    (note,) = notes(head(MODEL, LEARNED, (), "", {"sft": True, "files": ["facts.jsonl"]}))
    assert note == ("left out", "1 did not train: no answer of an assistant to learn", "")


@pytest.mark.parametrize(
    ("collections", "options", "again"),
    [
        (["capitals"], {"sft": True}, "%%train capitals --sft"),
        (
            ["capitals"],
            {"sft": True, "where": "reward > 0.9"},
            '%%train capitals --sft --where "reward > 0.9"',
        ),
        (
            ["capitals"],
            {"sft": True, "where": "F.reward > 0.9"},
            "lab.train(['capitals'], sft=True, where=F.reward > 0.9)",
        ),
        (["capitals"], {"sft": True, "files": ["a.jsonl"]}, "%%train capitals a.jsonl --sft"),
        ([], {"sft": True, "files": ["a.jsonl"]}, "%%train a.jsonl --sft"),
        (["capitals"], {"custom_loss": "0" * 64}, "lab.train(['capitals'], loss=fn)"),
        ([], {}, "%%train NAME"),
        (["capitals"], {"ppo": True, "epsilon": 0.1}, "lab.train(['capitals'], {'ppo': True, 'epsilon': 0.1})"),
        (
            ["capitals"],
            {"sft": True, "where": "reward > 0.9", "batch_size": 2},
            "lab.train(['capitals'], {'batch_size': 2}, sft=True, where='reward > 0.9')",
        ),
    ],
)
def test_a_failed_job_is_repeated_as_it_was_submitted(collections, options, again):
    failed = [started(), event("training_failed", error_message="the disk is full")]
    assert head(MODEL, failed, collections, "", options)["next"] == [again]


def progress(tokens: int, of: int = 96_000) -> Event:
    return event("step_progress", step=1, tokens=tokens, of=of)


@pytest.mark.parametrize(
    ("events", "line"),
    [
        ([started(), progress(40_000)], "job on lab/practice: running, step 1 of 2, 40k of 96k tokens"),
        (
            [started(), gradient_step(), progress(800), progress(1_600)],
            "job on lab/practice: running, step 2 of 2, 1,600 of 96k tokens",
        ),
        ([started(), progress(96_000), gradient_step()], "job on lab/practice: running, 1 of 2 gradient steps"),
        ([started(), progress(9), event("resumed")], "job on lab/practice: running, 0 of 2 gradient steps"),
        ([started(), progress(9, of=0)], "job on lab/practice: running, 0 of 2 gradient steps"),
        (
            [started(), progress(9), event("training_cancelled")],
            "job on lab/practice: cancelled, 0 of 2 gradient steps",
        ),
    ],
)
def test_a_step_under_way_is_told_by_its_tokens(events, line):
    assert text(MODEL, events).splitlines()[0] == line


def test_a_browser_gets_the_part_of_the_step_under_way():
    shown = head(MODEL, [started(), gradient_step(), progress(24_000)])
    assert (shown["done"], shown["part"], shown["within"]) == (1, 0.25, "24k of 96k tokens")
    assert (head(MODEL, WHOLE)["part"], head(MODEL, WHOLE)["within"]) == (0, "")


def divided(**data: Any) -> list[Event]:
    counts = {"trainable_groups": 16, "trainable_trajectories": 128, "trainable_tokens": 192_000}
    return [started(), event("preflight", **{**counts, "advantage_scale": 1.0, **data})]


def test_a_job_tells_how_it_is_divided_into_steps():
    line = "2 steps of 8 groups (each 64 completions, ≈ 96k tokens)"
    assert text(MODEL, divided()).splitlines()[1] == f"  {line}"
    assert line in in_words(html(MODEL, divided()))
    assert line in words(head(MODEL, divided())["band"])
    repeated = text(MODEL, divided(), {"epochs": 2}).splitlines()[1]
    assert repeated == "  2 epochs of 1 step of 16 groups (each 128 completions, ≈ 192k tokens)"


@pytest.mark.parametrize("data", [{"advantage_scale": None}, {"trainable_groups": 0}])
def test_steps_of_another_kind_are_not_told_as_steps_of_groups(data):
    assert "groups (" not in text(MODEL, divided(**data))


def test_what_was_wrong_with_the_answers_is_said_first_and_advice_in_words_is_no_cell():
    whole = Figures(8, 8, 2, {"trains": 2}, mean=0.5, cut_off=6)
    answers = Overview(
        whole, hints=[Hint("4 of 4 failures were cut off by max_tokens=4.", "", "%%chat a --max-tokens 8")]
    )
    events = [started(), event("preflight", reasons={}, warnings=["it is stale -> sample it with a larger -n, or not"])]
    shown = head(MODEL, events, ["a"], trained_on=answers)
    assert notes(shown) == [
        ("warning", "4 of 4 failures were cut off by max_tokens=4.", "%%chat a --max-tokens 8"),
        ("warning", "it is stale → sample it with a larger -n, or not", ""),
    ]
    assert "Cut off 75% 6 of 8 answers" in words(shown["band"])


@pytest.mark.parametrize(
    ("checkpoints", "whose"),
    [
        ([(MODEL, 4)], "of the model before this job"),
        ([(MODEL, 3)], "of lab/practice@3"),
        ([("lab/alpha", 4)], "of lab/alpha@4"),
        ([("big", None)], "of big"),
        ([(MODEL, 4), ("lab/zeta", 0)], "of lab/practice@4 and 1 more"),
        ([], "of what it trained on"),
    ],
)
def test_the_reward_says_of_which_checkpoint_the_answers_are(checkpoints, whose):
    events = [event("training_started", step=4, num_sequences=1), gradient_step()]
    overview = Overview(Figures(4, 4, 1, {}), checkpoints=checkpoints)
    assert f"Reward 1 {whose}" in words(head(MODEL, events, ["a"], trained_on=overview)["band"])
    assert f"Reward 1 {whose}" in in_words(html(MODEL, events, {}, ["a"], trained_on=overview))
    assert "Reward 1 of what it trained on" in words(head(MODEL, events, ["a", "b"])["band"])


NOT_NUMBERS = [
    ("gradient_step", {"loss": None, "reward": None, "entropy": None}),
    ("gradient_step", {"loss": "low", "reward": [1], "kl": {}, "grad_norm": True}),
    ("gradient_step", {"loss": float("nan"), "reward": float("inf"), "ratio_max": 10**400}),
    ("gradient_step", {"reward": 1e308, "loss": 1e308, "kl": -1e308}),
    ("checkpoint_saved", {}),
    ("checkpoint_saved", {"step": 1, "seconds": "long"}),
    ("training_started", {"num_sequences": None, "learning_rate": "low"}),
    ("training_started", {"num_sequences": "two"}),
    ("preflight", {"reasons": None, "warnings": None, "trainable_groups": "all", "groups": None}),
    ("preflight", {"reasons": [1], "warnings": "none", "advantage_scale": 1, "trainable_groups": 4}),
    ("preflight", {"reasons": {"unreadable": 1}, "unreadable": 1}),
    ("step_progress", {"tokens": None, "of": True}),
]


@pytest.mark.parametrize(("kind", "data"), NOT_NUMBERS)
@pytest.mark.parametrize("sft", [False, True])
def test_what_is_no_number_in_an_event_takes_nothing_else_away(kind, data, sft):
    more = [started(), *(gradient_step(kl=0.01) for _ in range(3)), *[event(kind, **data)] * 2]
    options = {"sft": True} if sft else {}
    assert text(MODEL, more, options).startswith("job on lab/practice: running")
    assert "nan" not in text(MODEL, more, options)
    assert "lab/practice" in html(MODEL, more, options)
    json.dumps(head(MODEL, more, options=options), allow_nan=False)
    json.dumps(numbers_of(more), allow_nan=False)
    assert "loss" in repr(plot(MODEL, gradient_steps(more), ("loss", "reward")))
    assert job_course(more).steps in {None, 3, 5}


def test_rewards_whose_sum_is_no_float_have_a_mean():
    steps = [started(3), *(gradient_step(reward=1e308) for _ in range(3))]
    assert "reward 1e+308" in text(MODEL, steps)
    assert "Reward 1e+308" in words(head(MODEL, steps)["band"])
    assert "Reward 1e+308" in in_words(html(MODEL, steps))


@pytest.mark.parametrize("lost", [float("nan"), float("inf"), None])
def test_a_job_that_diverged_says_so_first(lost):
    steps = [gradient_step(kl=0.01), *(gradient_step(kl=lost, loss=lost) for _ in range(2))]
    events = [started(3), PREFLIGHT, *steps, SAVED, ENDED]
    said = "loss and KL to the sampler are not numbers from step 2 on"
    shown = head(MODEL, events)
    assert notes(shown)[0] == ("failed", said, "")
    assert text(MODEL, events).splitlines()[1] == f"  {said}"
    assert in_words(html(MODEL, events)).count(said) == 1
    assert 'class="rl-hint rl-is-bad"' in html(MODEL, events)
    json.dumps([shown, numbers_of(events)], allow_nan=False)


def test_one_step_that_lost_a_number_is_named():
    steps = [gradient_step(), gradient_step(loss=float("nan")), gradient_step()]
    assert "  loss is not a number at step 2" in text(MODEL, [started(3), *steps]).splitlines()


def test_numbers_that_are_always_0_have_their_charts():
    steps = [gradient_step(kl=0.0, entropy=0.0, clipped=0.0, masked=0.0) for _ in range(3)]
    shown = html(MODEL, [started(3), *steps])
    assert "<figcaption><span>KL to the sampler</span>" in shown
    assert "<figcaption><span>entropy</span>" in shown


LONG = event("preflight", trainable_tokens=1200, trainable_trajectories=10)
UNUSUAL = ("0.3 on the first step", "0.500 on the first step", "0.12 nats in an answer")


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_what_is_unusual_is_said_once_and_is_not_folded(steps):
    odd = [gradient_step(kl=0.3, old_new_correlation=0.5, entropy=0.001) for _ in range(steps)]
    events = [started(steps), LONG, *odd]
    shown = in_words(html(MODEL, events))
    unfolded = in_words(re.sub("<details.*?</details>", "", html(MODEL, events), flags=re.DOTALL))
    above = words(head(MODEL, events)["hints"])
    for sentence in UNUSUAL:
        assert shown.count(sentence) == unfolded.count(sentence) == 1
        assert text(MODEL, events).count(sentence) == 1
        assert above.count(sentence) == (steps < 3), "a live view has it below its chart, where there is one"

"""How a training job looks: a fold over its events, the same live and replayed."""

import re
from typing import Any

import pytest

from rolloutlab.api.job_state import job_progress, status
from rolloutlab.api.wire.training import ENDINGS, Event
from rolloutlab.widgets.job import head, html, text

HOSTILE = "<script>alert(\"x\")</script><img src=x onerror='y'>&\"'"
ESCAPED = "&lt;script&gt;alert(&quot;x&quot;)&lt;/script&gt;&lt;img src=x onerror=&#x27;y&#x27;&gt;&amp;&quot;&#x27;"
MODEL = "lab/practice"


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
    assert html(MODEL, WHOLE[:read]).startswith(f"<p><b>{heading.replace('>', '&gt;')}</b></p>")


def test_a_whole_job_is_told_with_what_did_not_train_and_the_means_of_its_steps():
    assert text(MODEL, WHOLE).splitlines() == [
        "job on lab/practice: succeeded, 2 of 2 gradient steps -> lab/practice@1",
        "  2 did not train: all rewards of the group are equal, so nothing in it is better or worse",
        "  1 did not train: no reward yet",
        "  top_p 0.9",
        "  reward 1  loss 1  ratio_max 3",
    ]


def test_the_html_says_what_the_text_says():
    message = html(MODEL, WHOLE)
    for words in ("1 did not train: no reward yet", "top_p 0.9"):
        assert f"<p>{words}</p>" in message
    assert "<tr><th>reward</th><th>loss</th><th>ratio_max</th></tr><tr><td>1</td><td>1</td><td>3</td></tr>" in message


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
    assert "failed, 0 of 2 gradient steps" in shown
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
        (MODEL, [event("preflight", reasons={"unscored": HOSTILE})]),
        (MODEL, [event("preflight", warnings=[HOSTILE])]),
        (MODEL, [event("checkpoint_saved", step=HOSTILE)]),
    ],
    ids=["model", "model of a checkpoint", "failure", "reason", "count", "warning", "step"],
)
def test_what_the_service_says_is_text(model, events):
    shown = html(model, events)
    assert ESCAPED in shown
    assert set(re.findall(r"<(\w+)", shown)) <= {"p", "b", "table", "tr", "th", "td"}


def test_without_events_a_job_is_queued():
    assert (status([]), text(MODEL, [])) == ("queued", "job on lab/practice: queued")
    assert html(MODEL, []) == "<p><b>job on lab/practice: queued</b></p>"


@pytest.mark.parametrize("show", [text, html])
def test_neither_addresses_nor_times_nor_ids_are_shown(show):
    again = [Event(id=f"9{i}", type=e.type, data=e.data) for i, e in enumerate(WHOLE)]
    assert show(MODEL, again) == show(MODEL, WHOLE)
    assert not re.search(r"0x[0-9a-f]{6}|object at|\d\d:\d\d", show(MODEL, WHOLE))


def test_html_tells_the_course_in_words_where_a_page_shows_no_pictures():
    shown = re.sub("<[^>]+>", " ", re.sub("<svg.*", "", html(MODEL, WHOLE)))
    assert re.search(r"loss +▁█ +0.5 -&gt; 1.5 +-mean.weight", shown)
    assert "curve" not in html(MODEL, WHOLE[:3])


def test_html_has_the_course_as_a_picture_that_needs_no_script():
    assert "<svg" in html(MODEL, WHOLE)
    assert "<svg" not in html(MODEL, WHOLE[:3])
    long = [started(5000), *(gradient_step(loss=float(i)) for i in range(5000))]
    assert html(MODEL, long).count("<circle") <= 2 * 120


def test_the_head_says_why_what_did_not_train_and_what_to_type_about_it():
    response = head(MODEL, WHOLE, ["capitals"])
    assert [(note["kind"], note["fix"]) for note in response["notes"]] == [
        ("left out", "%%train capitals --dry-run"),
        ("left out", "%%reward capitals"),
        ("warning", ""),
    ]
    assert (response["done"], response["rows"], response["made"], response["ended"]) == (2, 2, "lab/practice@1", True)
    assert ("mean reward", "1.000") in response["facts"]


def test_what_needs_nothing_to_be_typed_is_told_so():
    (note,) = head(MODEL, [event("preflight", reasons={"mean_reward": 3})])["notes"]
    assert note["text"].endswith("so the advantage is 0: this is expected")
    assert note["fix"] == ""


def test_a_reason_of_a_newer_service_is_told_as_it_is():
    (note,) = head(MODEL, [event("preflight", reasons={"too_dull": 3})])["notes"]
    assert note["text"] == "3 did not train: too_dull"


def test_when_it_has_ended_the_head_says_what_to_type_next():
    begun = event("training_started", num_sequences=2, step=4, learning_rate=0.002)
    made = [begun, event("checkpoint_saved", step=5), ENDED]
    assert head(MODEL, made, ["capitals", "letters"])["next"] == []
    response = head(MODEL, made, ["capitals", "letters"], "%compare capitals")
    assert response["next"] == ["%compare capitals --before 4 --after 5"]
    assert response["facts"] == [("learning rate", "0.002")]
    failed = [begun, event("training_failed", error_message="the disk is full")]
    response = head(MODEL, failed, ["capitals", "letters"])
    assert response["next"] == ["%%train capitals letters"]
    assert response["notes"] == [{"kind": "failed", "text": "the disk is full", "fix": "%service log"}]
    assert head(MODEL, [begun])["next"] == []


def test_what_a_service_says_cannot_act_in_a_browser():
    failed = event("training_failed", error_message="\x1b[31m\u202eoh")
    assert head(MODEL, [failed])["notes"][0]["text"] == "␛[31m⟨202e⟩oh"


SFT_PREFLIGHT = event(
    "preflight", trajectories=4, trainable_trajectories=3, reasons={"no_answer": 1}, warnings=[], unreadable={}
)
LEARNED = [started(), SFT_PREFLIGHT, gradient_step(loss=2.0, kl_base=0.0), gradient_step(loss=1.5, kl_base=0.2)]


def test_a_fine_tuning_job_speaks_of_conversations_and_of_cross_entropy():
    options = {"sft": True, "learning_rate": [2e-3, 1e-3]}
    shown = head(MODEL, LEARNED, ["capitals"], "%compare capitals", options)
    assert ("conversations that train", "3 of 4") in shown["facts"]
    assert ("learning rates", "0.001 to 0.002") in shown["facts"]
    assert not any("trajector" in name or "group" in name for name, _ in shown["facts"])
    assert "cross-entropy" in html(MODEL, LEARNED, options)
    assert "-mean(weight" not in html(MODEL, LEARNED, options)
    assert "kl_base 0.1" in text(MODEL, LEARNED, options)


def test_what_a_file_lacks_is_not_to_be_looked_for_in_a_collection():
    (note,) = head(MODEL, LEARNED, (), "", {"sft": True, "files": ["facts.jsonl"]})["notes"]
    assert note == {"kind": "left out", "text": "1 did not train: no answer of an assistant to learn", "fix": ""}


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
    line = "2 steps of 8 groups (64 completions, ≈ 96k tokens each)"
    assert text(MODEL, divided()).splitlines()[1] == f"  {line}"
    assert f"<p>{line}</p>" in html(MODEL, divided())
    assert ("divided into", line) in head(MODEL, divided())["facts"]
    repeated = text(MODEL, divided(), {"epochs": 2}).splitlines()[1]
    assert repeated == "  2 epochs of 1 step of 16 groups (128 completions, ≈ 192k tokens each)"


@pytest.mark.parametrize("data", [{"advantage_scale": None}, {"trainable_groups": 0}])
def test_steps_of_another_kind_are_not_told_as_steps_of_groups(data):
    assert "groups (" not in text(MODEL, divided(**data))

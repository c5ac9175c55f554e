"""Algorithms by name in cells, in Python, in the form and in a loop; what other services refuse of them."""

import httpx
import pytest

from rolloutlab.api.http.client import HttpClient
from rolloutlab.errors import InputError
from rolloutlab.magics import register
from rolloutlab.session import Session
from rolloutlab.settings import Settings
from tests.labs import completion, lab_with
from tests.magics.conftest import Notebook
from tests.wandb_service import ENTITY, KEY, PROJECT, Wandb


def place(trajectory) -> float:
    return float(trajectory.name[-1])


@pytest.fixture
def capitals(notebook):
    """The notebook with a scored collection whose answers have at most four tokens."""
    notebook.run("%%chat capitals -n 4 --max-tokens 4 --seed 1\nCapital of Peru?")
    notebook.lab.reward("capitals", place, say=lambda _: None)
    return notebook


def report(notebook, cell) -> list[str]:
    return repr(notebook.run(cell)).splitlines()


def test_a_cell_takes_one_and_the_report_says_what_it_stands_for(capitals, capsys):
    line = (
        "algorithm dr_grpo (arXiv 2503.20783): ppo: true, scale_rewards: false, loss_aggregation: constant, "
        "loss_scale_factor: 4"
    )
    assert line in report(capitals, "%%train capitals --dry-run\nalgorithm: dr_grpo")
    job = capitals.run("%%train capitals\nalgorithm: dr_grpo\nlearning_rate: 2e-3")
    assert line in capsys.readouterr().out
    assert job.status == "succeeded"
    assert capitals.lab.store.jobs.newest_first()[0].options == {
        "learning_rate": 2e-3,
        "ppo": True,
        "scale_rewards": False,
        "loss_aggregation": "constant",
        "loss_scale_factor": 4,
    }


def test_what_is_typed_wins(capitals):
    lines = report(capitals, "%%train capitals --dry-run\nalgorithm: dapo\nepsilon_high: 0.3")
    expected = "ppo: true, loss_aggregation: token_mean, mask_truncated: true; as typed: epsilon_high: 0.3"
    assert f"algorithm dapo (arXiv 2503.14476): {expected}" in lines


def test_python_takes_one_beside_the_options_or_among_them(capitals):
    lab = capitals.lab
    said = {
        repr(lab.check("capitals", algorithm="cispo")),
        repr(lab.check("capitals", {"algorithm": "cispo"})),
        repr(capitals.run("%%train capitals --dry-run\nalgorithm: cispo")),
    }
    assert len(said) == 1
    lab.train("capitals", algorithm="cispo", say=lambda _: None)
    assert lab.store.jobs.newest_first()[0].options == {"loss_aggregation": "token_mean"}
    with pytest.raises(InputError, match="given twice"):
        lab.check("capitals", {"algorithm": "grpo"}, algorithm="cispo")


def test_each_token_counts_alike_where_the_algorithm_says_so(session):
    lab_with(session.store, [completion("Lima", "a" * n) for n in (2, 9)], rewards=[1.0, 0.0])
    assert session.check("capitals", algorithm="dapo").to_frame()["weight"].tolist() == [1.0, 1.0]
    assert session.check("capitals", algorithm="rloo").to_frame()["weight"].tolist() == [1.0, 1.0]
    assert len(set(session.check("capitals", algorithm="grpo").to_frame()["weight"])) == 2


@pytest.mark.parametrize(
    ("cell", "why", "hint"),
    [
        (
            "%%train capitals\nalgorithm: drgrpo",
            "'drgrpo' is not one of grpo, dr_grpo, dapo, gspo, cispo, rloo",
            "algorithm: dr_grpo",
        ),
        ("%%train capitals\nalgoritm: dapo", "unknown option 'algoritm'", "algorithm: dapo"),
        (
            "%%train capitals long\nalgorithm: dr_grpo",
            "dr_grpo divides by the max_tokens of what was sampled, and capitals has 4, long has 9",
            "loss_scale_factor: 9",
        ),
        (
            "%%train plain\nalgorithm: dr_grpo",
            "dr_grpo divides by the max_tokens of what was sampled, and plain has none",
            "loss_scale_factor: 512",
        ),
        ("%%train capitals --sft\nalgorithm: grpo", "unknown option 'algorithm' with --sft", "learning_rate: 2e-3"),
    ],
)
def test_what_it_cannot_be_is_an_error_with_what_to_type(capitals, cell, why, hint):
    capitals.run("%%chat long -n 2 --max-tokens 9 --seed 1\nCapital of Peru?")
    capitals.run("%%chat plain -n 2 --seed 1\nCapital of Peru?")
    error = capitals.error(cell)
    assert why in error
    assert hint in error.rpartition("->")[2]


def test_a_typed_divisor_is_taken_whatever_was_sampled(capitals):
    capitals.run("%%chat long -n 2 --max-tokens 9 --seed 1\nCapital of Peru?")
    capitals.lab.reward("long", place, say=lambda _: None)
    lines = report(capitals, "%%train capitals long --dry-run\nalgorithm: dr_grpo\nloss_scale_factor: 7")
    assert any(line.endswith("loss_aggregation: constant; as typed: loss_scale_factor: 7") for line in lines)


def test_the_form_has_its_fields_filled_in_and_its_cell_shows_them(capitals):
    form = capitals.run("%%train capitals --form\nalgorithm: dapo\nepsilon_high: 0.3")
    assert form.cell == (
        "%%train capitals\nepsilon_high: 0.3\nppo: true\nloss_aggregation: token_mean\nmask_truncated: true"
    )
    assert form.state()["algorithms"]["dr_grpo"] == {
        "ppo": "true",
        "scale_rewards": "false",
        "loss_aggregation": "constant",
        "loss_scale_factor": "4",
    }
    typed = capitals.run(form.cell.replace("capitals", "capitals --dry-run", 1))
    assert repr(form.check()) == repr(typed)
    with pytest.raises(InputError, match="is not one of"):
        capitals.lab.train_form("capitals", algorithm="dap")


def test_where_an_algorithm_leaves_nothing_to_train_the_reason_comes_first(capitals):
    error = capitals.error("%%train capitals\nalgorithm: dapo")
    assert "nothing in capitals would train: 4 left out: the last answer was cut off by max_tokens" in error
    assert error.endswith("-> sample capitals with a larger --max-tokens, or mask_truncated: false")


def test_the_form_leaves_open_what_it_cannot_know(capitals):
    capitals.run("%%chat plain -n 2 --seed 1\nCapital of Peru?")
    capitals.lab.reward("plain", place, say=lambda _: None)
    outlook = capitals.lab.train_form("plain", algorithm="dr_grpo").look({"loss_aggregation": "constant"})
    assert outlook["problems"] == {"loss_aggregation": "constant needs a loss_scale_factor"}


def test_a_loop_trains_with_one(capitals):
    capitals.lab.loop(
        "loop", "Capital of Peru?", place, jobs=1, n=4, max_tokens=5, options={"algorithm": "dr_grpo"}, say=lambda _: 0
    )
    assert capitals.lab.store.jobs.newest_first()[0].options["loss_scale_factor"] == 5
    with pytest.raises(InputError, match="loop has none") as refused:
        capitals.lab.loop("loop", "Capital of Peru?", place, jobs=1, n=4, options={"algorithm": "dr_grpo"})
    assert refused.value.hint == "loss_scale_factor: 512"


@pytest.fixture
def at_wandb(bare, tmp_path, monkeypatch):
    """A notebook at the stand-in of W&B with a scored collection, and the stand-in."""
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    wandb = Wandb()
    session = Session(Settings(home=tmp_path), http=HttpClient(httpx.MockTransport(wandb), backoff=0))
    register(bare, session)
    notebook = Notebook(bare)
    notebook.run(f"%connect wandb:{ENTITY}/{PROJECT}")
    notebook.run(f"%model {PROJECT}/sorter --base OpenPipe/Qwen3-14B-Instruct")
    notebook.run("%%chat one -n 2 --max-tokens 4\nSort ba")
    session.reward("one", place, say=lambda _: None)
    yield notebook, wandb
    session.close()
    assert wandb.wrong == []


@pytest.mark.parametrize(
    ("cell", "sent"),
    [
        ("algorithm: grpo", {"ppo": True}),
        (
            "algorithm: gspo",
            {"ppo": True, "importance_sampling_level": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4},
        ),
        (
            "algorithm: dapo\nloss_aggregation: sequence_mean\nmask_truncated: false",
            {"ppo": True, "epsilon_high": 0.28},
        ),
        ("credit: trajectory\nepochs: 1", {}),
    ],
)
def test_what_the_specification_has_trains_at_another_service_too(at_wandb, cell, sent):
    notebook, wandb = at_wandb
    notebook.run(f"%%train one\n{cell}")
    assert wandb.jobs[0].get("experimental_config", {}) == sent


def test_the_steps_are_told_to_be_those_of_the_service(at_wandb):
    assert "steps: as the service divides" in report(at_wandb[0], "%%train one --dry-run")


@pytest.mark.parametrize(
    ("cell", "named", "hint"),
    [
        (
            "algorithm: dapo",
            ("does not honour loss_aggregation", "does not honour mask_truncated"),
            "loss_aggregation: sequence_mean; mask_truncated: false",
        ),
        ("algorithm: cispo", ("does not honour loss_aggregation",), "loss_aggregation: sequence_mean"),
        ("groups_per_step: 4", ("does not honour groups_per_step",), "leave it out"),
        ("max_grad_norm: 1.0", ("does not honour max_grad_norm",), "leave it out"),
        ("weight_decay: 0.1", ("does not honour weight_decay",), "leave it out"),
    ],
)
def test_what_a_service_does_not_take_is_refused_by_name(at_wandb, cell, named, hint):
    notebook, wandb = at_wandb
    error = notebook.error(f"%%train one\n{cell}")
    assert all(name in error for name in named)
    assert error.endswith(f"-> {hint}")
    assert wandb.jobs == []
    lines = report(notebook, f"%%train one --dry-run\n{cell}")
    assert sum(line.startswith("no job can begin") for line in lines) == len(named)

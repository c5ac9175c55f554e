"""The hosted service of openpipe-art, by its strict stand-in: the cells of the first loop, what it has not."""

import asyncio
from dataclasses import replace

import httpx
import pytest

from rolloutlab.api.http.client import HttpClient
from rolloutlab.magics import register
from rolloutlab.session import Session
from rolloutlab.settings import Price, Settings, read_settings
from tests.magics.conftest import Notebook
from tests.wandb_service import ENTITY, HOST, KEY, PROJECT, Wandb

BASE = "OpenPipe/Qwen3-14B-Instruct"
MODEL = f"{PROJECT}/sorter"
CELL = "Sort these letters: {{letters}}"
REWARD = "\nreturn float(answer == ''.join(sorted(letters)))"
LETTERS = [{"letters": letters} for letters in ("dbca", "zyx", "nmo", "hgf", "qpr", "edf", "ba", "tsu")]


def sorts(messages, step, number):
    """Every second completion is right at first, each after a job."""
    letters = messages[-1]["content"].rpartition(": ")[2]
    return "".join(sorted(letters)) if step or number % 2 else letters


@pytest.fixture
def wandb():
    service = Wandb(sorts)
    yield service
    assert service.wrong == []


@pytest.fixture
def notebook(bare, wandb, tmp_path, monkeypatch):
    """Connected to the stand-in, with a key and rows of letters."""
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    session = Session(Settings(home=tmp_path), http=HttpClient(httpx.MockTransport(wandb), backoff=0))
    register(bare, session)
    bare.user_ns |= {"practice": LETTERS[:4], "held_out": LETTERS[4:], "letters": LETTERS}
    notebook = Notebook(bare)
    yield notebook
    session.close()


@pytest.fixture
def sorter(notebook):
    notebook.run(f"%connect wandb:{ENTITY}/{PROJECT}")
    notebook.run(f"%model {MODEL} --base {BASE}")
    return notebook


def test_it_is_connected_by_entity_and_project_with_the_key_of_its_variable(notebook, wandb):
    state = repr(notebook.run(f"%connect wandb:{ENTITY}/{PROJECT}"))
    assert f"https://{HOST} answers: it samples and trains; %model PROJECT/NAME --base BASE selects one" in state
    assert "kind       wandb" in state
    assert "key        WANDB_API_KEY" in state
    assert f"project    {ENTITY}/{PROJECT}" in state
    assert KEY not in state
    assert wandb.requests == [("POST", "/v1/chat/completions")]


def test_the_cells_of_the_first_loop_sample_score_train_and_compare(sorter, wandb):
    sorter.run(f"%%chat before -n 4 --over held_out --max-tokens 16 --seed 1\n{CELL}")
    before = sorter.run(f"%%reward before{REWARD}")
    sorter.run(f"%%chat sorting -n 8 --over practice --max-tokens 16 --seed 2\n{CELL}")
    sorter.run(f"%%reward sorting{REWARD}")
    job = sorter.run("%%train sorting\nlearning_rate: 2e-3\nkimi_k2_tau: 0.1")
    assert (job.status, job.step) == ("succeeded", 1)
    assert job.metrics()["loss"].tolist() == [0.25, 0.25]
    sorter.run(f"%%chat after -n 4 --over held_out --max-tokens 16 --seed 1\n{CELL}")
    after = sorter.run(f"%%reward after{REWARD}")
    assert (before.mean_reward, after.mean_reward) == (0.5, 1.0)
    named = f"wandb-artifact:///{ENTITY}/{MODEL}"
    assert [body["model"] for body in wandb.chats] == [f"{named}:step0"] * 8 + [f"{named}:step1"] * 4
    assert {t.step for t in after.trajectories} == {1}
    [sent] = wandb.jobs
    assert sent["model_id"] == wandb.models[MODEL]["id"]
    assert sent["experimental_config"] == {"learning_rate": 2e-3, "kimi_k2_tau": 0.1}
    assert [len(group["trajectories"]) for group in sent["trajectory_groups"]] == [8] * 4
    assert "1" in str(sorter.run("%jobs")["step"].iloc[0])


def test_a_job_keeps_its_checkpoint_if_the_jobs_are_listed_before_it_is_looked_at(sorter):
    sorter.run(f"%%chat sorting -n 4 --over practice --seed 2\n{CELL}")
    sorter.run(f"%%reward sorting{REWARD}")
    sorter.run("%%train sorting --no-wait")
    assert sorter.run("%jobs")["status"].tolist() == ["succeeded"]
    assert sorter.run("%job").step == 1
    listed = sorter.run("%jobs")
    assert (listed["step"].tolist(), listed["steps"].tolist()) == ([1], [2])


def test_the_jobs_are_listed_although_the_service_does_not_answer(sorter, monkeypatch):
    async def hang(*_):
        await asyncio.Event().wait()

    sorter.run(f"%%chat sorting -n 4 --over practice --seed 2\n{CELL}")
    sorter.run(f"%%reward sorting{REWARD}")
    sorter.run("%%train sorting --no-wait")
    monkeypatch.setattr("rolloutlab.training.jobs._TIMEOUT", 0.01)
    monkeypatch.setattr("rolloutlab.api.training.events", hang)
    assert sorter.run("%jobs")["status"].tolist() == ["unreachable"]


def test_checkpoints_are_compared_by_their_steps(sorter, wandb):
    sorter.run(f"%%chat sorting -n 4 --over practice --seed 2\n{CELL}")
    sorter.run(f"%%reward sorting{REWARD}")
    sorter.run("%%train sorting")
    wandb.chats.clear()
    comparison = sorter.run("%compare sorting --over held_out")
    named = f"wandb-artifact:///{ENTITY}/{MODEL}"
    assert {body["model"] for body in wandb.chats} == {f"{named}:step0", f"{named}:step1"}
    assert (comparison.mean_before, comparison.mean_after) == (0.5, 1.0)
    assert comparison.trained == 0
    assert sorter.run("%compare sorting").trained == 4


def test_a_loop_goes_round_and_knows_its_best_checkpoint(sorter, wandb):
    rounds = sorter.run(
        "lab = get_ipython().magics_manager.registry['ChatMagics'].session\n"
        "lab.loop('sorting', 'Sort these letters: {{letters}}',"
        " lambda answer, letters: float(answer == ''.join(sorted(letters))),"
        " over=practice, held_out=held_out, jobs=1, n=4, seed=0, say=lambda _: None)"
    )
    assert [one.step for one in rounds.rounds] == [0, 1]
    assert rounds.best == f"{MODEL}@1"
    assert len(wandb.jobs) == 1


def test_a_name_that_it_lacks_is_no_reason_to_ask_for_a_list_that_it_lacks_too(sorter):
    assert sorter.error("%%chat other -m openai/gpt-5\nhello").endswith("-> %model PROJECT/NAME --base BASE")


def test_a_checkpoint_and_a_base_model_are_sampled_by_name(sorter, wandb):
    sorter.run(f"%%chat one -m {MODEL}@0\nhello")
    assert wandb.chats[-1]["model"] == f"wandb-artifact:///{ENTITY}/{MODEL}:step0"
    assert "no step 7" in sorter.error(f"%%chat one -m {MODEL}@7\nhello")
    assert f"model {BASE} not found" in sorter.error(f"%%chat one -m {BASE}\nhello")  # its name is not changed


def test_a_conversation_with_tools_trains_there(sorter, wandb):
    talk = sorter.run("%%chat talk -n 2 --seed 3\nuser: Sort: ba\nassistant:\nuser: Sort: dc")
    sorter.lab.reward("talk", lambda trajectory: float(trajectory.name.endswith("1")), say=lambda _: None)
    sorter.run("%%train talk")
    assert len(talk.trajectories[0].choices) == 2
    first = wandb.jobs[0]["trajectory_groups"][0]["trajectories"][0]
    assert [item.get("role", "choice") for item in first["messages_and_choices"]] == ["user", "choice"] * 2


@pytest.mark.parametrize(
    ("cell", "why"),
    [
        ("%model capitals/other", "wandb registers no model without its base: capitals/other"),
        (f"%model other/sorter --base {BASE}", "models of the connected project are named capitals/sorter"),
        ("%models", "does not list its models"),
        ("%%train one\nkl_penalty_coef: 0.1", "the engine wandb does not honour kl_penalty_coef"),
        ("%%train one --sft", "takes no fine-tuning data"),
        (f"%models --delete {MODEL}@9", "has no checkpoint 9"),
        (f"%model capitals/other --from {MODEL}@0", "makes no models from checkpoints\n  -> %connect embedded"),
    ],
)
def test_what_it_does_not_have_is_refused_without_a_request(sorter, wandb, cell, why):
    sorter.run("%%chat one -n 2\nSort ba")
    sorter.lab.reward("one", lambda trajectory: float(trajectory.name.endswith("1")), say=lambda _: None)
    assert why in sorter.error(cell)
    assert wandb.jobs == []


def test_a_checkpoint_is_taken_away_by_the_tool_of_its_vendor(sorter, wandb, tmp_path):
    sorter.run("%%chat one -n 2\nSort ba")
    told = sorter.error(f"%export {MODEL}@0 --to '{tmp_path / 'out'}'")
    assert "hands out no files of checkpoints" in told
    assert f"-> !wandb artifact get {ENTITY}/{MODEL}:step0, with the vendor's package" in told
    assert not (tmp_path / "out").exists()


def test_a_checkpoint_is_deleted(sorter, wandb):
    sorter.run(f"%%chat sorting -n 4 --over practice --seed 2\n{CELL}")
    sorter.run(f"%%reward sorting{REWARD}")
    sorter.run("%%train sorting")
    assert sorter.lab.models.delete(f"{MODEL}@0").steps == (1,)


def test_a_job_whose_answer_is_lost_is_not_sent_again(sorter, wandb, monkeypatch):
    sorter.run("%%chat one -n 2\nSort ba")
    sorter.lab.reward("one", lambda trajectory: float(trajectory.name.endswith("1")), say=lambda _: None)
    accept = wandb.train

    def lose(job, body):
        accept(job, body)
        raise httpx.ReadError("")

    monkeypatch.setattr(wandb, "train", lose)
    assert "may have been accepted, but the response was lost" in sorter.error("%%train one")
    assert len(wandb.jobs) == 1


def test_a_wrong_key_is_refused_with_what_to_type(notebook, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "another")
    error = notebook.error(f"%connect wandb:{ENTITY}/{PROJECT}")
    assert error.startswith(f"SignInError: https://{HOST} refused the token: 401 Invalid API key")
    assert f"%env WANDB_API_KEY=, or %connect wandb:{ENTITY}/{PROJECT} --key-keyring" in error
    assert "another" not in error.replace("another service", "")


def test_without_the_variable_nothing_is_sent(notebook, wandb, monkeypatch):
    monkeypatch.delenv("WANDB_API_KEY")
    error = notebook.error(f"%connect wandb:{ENTITY}/{PROJECT}")
    assert "the environment variable WANDB_API_KEY, which should hold the key, is not set" in error
    assert f"%connect wandb:{ENTITY}/{PROJECT} --key-keyring" in error
    assert wandb.requests == []


def test_the_keyring_can_hold_the_key(notebook, wandb, ring, monkeypatch):
    monkeypatch.delenv("WANDB_API_KEY")
    monkeypatch.setattr("getpass.getpass", lambda prompt: KEY)
    monkeypatch.setattr(notebook.lab._connector, "_can_ask", lambda: True)
    notebook.run(f"%connect wandb:{ENTITY}/{PROJECT} --key-keyring")
    notebook.run(f"%model {MODEL} --base {BASE}")
    assert KEY in str(ring.values())
    assert {name for _, name in ring} <= {f"https://{HOST}"} or all(HOST in str(key) for key in ring)


@pytest.mark.parametrize(
    "cell", ["%connect wandb:a/b --inference https://other.example", "%connect --inference https://other.example/v1"]
)
def test_the_key_goes_to_no_other_host(notebook, wandb, cell):
    notebook.run(f"%connect wandb:{ENTITY}/{PROJECT}")
    before = len(wandb.requests)
    assert "the key of this service goes to its own addresses alone" in notebook.error(cell)
    assert len(wandb.requests) == before


@pytest.mark.parametrize("name", ["wandb:", "wandb:team", "wandb:team/a/b", "wandb:https://other.example"])
def test_a_wrong_project_is_an_error(notebook, wandb, name):
    assert "is not a project name" in notebook.error(f"%connect {name}")
    assert wandb.requests == []


def settings_of(tmp_path, text, **variables):
    (tmp_path / "settings.toml").write_text(text)
    return read_settings({"ROLLOUTLAB_SETTINGS": str(tmp_path / "settings.toml"), **variables})


def test_a_profile_of_its_kind_needs_no_more_than_the_project(tmp_path):
    text = 'profile = "hosted"\n[profiles.hosted]\nkind = "wandb"\nproject = "my-team/capitals"\n'
    address = settings_of(tmp_path, text, WANDB_API_KEY=KEY).service
    assert (address.kind, address.base_url, address.token) == ("wandb", f"https://{HOST}", KEY)


def test_a_profile_with_another_url_does_not_get_the_key_of_the_variable(tmp_path):
    head = 'profile = "hosted"\n[profiles.hosted]\nkind = "wandb"\nproject = "my-team/capitals"\n'
    text = f'{head}url = "https://other.example"\n'
    assert settings_of(tmp_path, text, WANDB_API_KEY=KEY).service.token is None


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('kind = "wandb"', "profiles.hosted has no project"),
        ('kind = "openai"', "profiles.hosted has no url"),
        ('url = "https://a.example"\nkind = "art"', "kind: must be 'rolloutlab', 'openai' or 'wandb', not 'art'"),
    ],
)
def test_a_wrong_profile_is_an_error_with_its_line(tmp_path, line, why):
    with pytest.raises(Exception, match=r"settings\.toml, line ") as caught:
        settings_of(tmp_path, f"[profiles.hosted]\n{line}\n")
    assert why in str(caught.value)


def test_a_profile_that_samples_only_is_not_asked_whether_it_trains(bare, tmp_path):
    from tests.sampling_services import URL, Groq

    service = Groq()
    settings = settings_of(tmp_path, f'profile = "g"\n[profiles.g]\nkind = "openai"\nurl = "{URL}"\n')
    session = Session(settings, http=HttpClient(httpx.MockTransport(service), backoff=0))
    assert "it samples, but does not train" in repr(session.connect("g"))
    assert session.model(service.models[0]).trains is False
    assert set(service.paths) == {"GET /v1/models"}
    session.close()


@pytest.mark.parametrize(
    "name", [MODEL, f"wandb-artifact:///{ENTITY}/{MODEL}", f"{MODEL}@0", f"wandb-artifact:///{ENTITY}/{MODEL}:step0"]
)
def test_a_price_of_a_model_or_its_sampled_checkpoint_is_found_under_its_name_here_and_there(sorter, name, capsys):
    connector = sorter.lab._connector
    connector.settings = replace(connector.settings, prices={name: Price(prompt=1.0, completion=2.0)})
    sorter.run("%%chat paid --max-tokens 16 --budget 5\nuser: Sort: ba")
    assert f"tokens of {MODEL}" in capsys.readouterr().out

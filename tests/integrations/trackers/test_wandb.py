"""Weights & Biases: when a run is sent, and what of it. `make acceptance-trackers` has the package itself."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from rolloutlab.errors import InputError, UnreachableError
from rolloutlab.runs.tracker import open_trackers
from tests.runs.tables import table


class FakeRun:
    def __init__(self, folder: Path, fails: bool) -> None:
        self.dir, self._fails, self.rows = str(folder / "files"), fails, []

    def define_metric(self, name, step_metric=None):
        pass

    def log(self, row):
        if self._fails:
            raise RuntimeError("the connection broke off")
        self.rows.append({name: value for name, value in row.items() if name != "_timestamp"})

    def finish(self):
        pass


class FakeWandb(SimpleNamespace):
    """The calls that are made of the package, and the settings that it would have read."""

    def __init__(self, **settings) -> None:
        self.settings = {"mode": "online", "base_url": "https://api.wandb.ai", "api_key": None} | settings
        self.begun, self.fails, self.refuses = [], False, False

    def setup(self):
        return SimpleNamespace(settings=SimpleNamespace(**self.settings))

    def Settings(self, **settings):  # noqa: N802 - its name in the package
        return settings

    def init(self, *, id, dir, mode, **options):  # noqa: A002
        if self.refuses:
            raise RuntimeError("401")
        prefix = "offline-run" if mode == "offline" else "run"
        folder = Path(dir) / "wandb" / f"{prefix}-2026_{len(self.begun)}-{id}"
        folder.mkdir(parents=True)
        run = FakeRun(folder, self.fails)
        self.begun.append(SimpleNamespace(id=id, mode=mode, rows=run.rows, folder=folder, **options))
        return run


@pytest.fixture
def wandb(monkeypatch, tmp_path):
    """The package, as `fake(api_key=...)`."""
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    for name in ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)

    def fake(**settings) -> FakeWandb:
        module = FakeWandb(**settings)
        monkeypatch.setitem(sys.modules, "wandb", module)
        return module

    return fake


def send(home, run, place="wandb") -> str:
    (tracker,) = open_trackers([place], home)
    return tracker.log(run)


def test_without_a_key_the_run_stays_in_the_lab_folder(wandb, tmp_path):
    package = wandb()
    line = send(tmp_path, table())
    assert package.begun[0].mode == "offline"
    assert "offline; wandb sync" in line
    assert str(package.begun[0].folder) in line


@pytest.mark.parametrize("mode", ["offline", "dryrun"])
def test_a_user_who_is_logged_in_can_stay_offline(wandb, tmp_path, mode):
    package = wandb(api_key="k" * 40, mode=mode)
    send(tmp_path, table())
    assert package.begun[0].mode == "offline"


def test_a_login_is_of_the_server_that_it_names(wandb, tmp_path):
    (tmp_path / "netrc").write_text("machine api.wandb.ai\n  login user\n  password " + "k" * 40 + "\n")
    package = wandb(base_url="https://wandb.example.org")
    send(tmp_path, table())
    package.settings["base_url"] = "https://api.wandb.ai"
    send(tmp_path, table())
    assert [each.mode for each in package.begun] == ["offline", "online"]


def test_a_key_goes_over_https_or_to_this_machine_alone(wandb, tmp_path):
    package = wandb(api_key="k" * 40, base_url="http://wandb.example.org")
    with pytest.raises(InputError, match="without encryption"):
        send(tmp_path, table())
    assert package.begun == []
    package.settings["base_url"] = "http://127.0.0.1:8080"
    send(tmp_path, table())
    assert package.begun[0].mode == "online"


def test_a_package_that_is_switched_off_is_an_error(wandb, tmp_path):
    wandb(mode="disabled")
    with pytest.raises(InputError, match="WANDB_MODE=disabled"):
        send(tmp_path, table())


def test_a_run_that_goes_on_sends_what_is_new_also_at_earlier_steps(wandb, tmp_path):
    package = wandb(api_key="k" * 40)
    send(tmp_path, table(2, numbers={"reward": [1, 2], "held_out": [None, None]}))
    send(tmp_path, table(3, numbers={"reward": [1, 2, 3], "held_out": [0.5, None, None]}))
    first, second = package.begun
    assert first.rows == [{"step": 0, "reward": 1}, {"step": 1, "reward": 2}]
    assert second.rows == [{"step": 0, "held_out": 0.5}, {"step": 2, "reward": 3}]
    assert first.id == second.id


def test_numbers_that_have_changed_are_sent_as_another_run(wandb, tmp_path):
    package = wandb(api_key="k" * 40)
    send(tmp_path, table(1, numbers={"reward": [1]}))
    assert "a new run, since numbers have changed" in send(tmp_path, table(1, numbers={"reward": [2]}))
    first, second = package.begun
    assert second.rows == [{"step": 0, "reward": 2}]
    assert first.id != second.id


def test_a_run_that_was_refused_is_sent_to_the_same_run_later(wandb, tmp_path):
    package = wandb(api_key="k" * 40)
    package.refuses = True
    with pytest.raises(UnreachableError, match="401"):
        send(tmp_path, table(1))
    package.refuses = False
    assert "a new run" not in send(tmp_path, table(1))
    assert len(package.begun[0].rows) == 1


def test_after_a_transfer_that_broke_off_nothing_is_sent_twice_to_one_run(wandb, tmp_path):
    package = wandb(api_key="k" * 40)
    package.fails = True
    with pytest.raises(UnreachableError, match="the connection broke off") as error:
        send(tmp_path, table(1))
    assert "WANDB_MODE=offline" in error.value.hint
    package.fails = False
    assert "an earlier transfer broke off" in send(tmp_path, table(1))
    assert len({each.id for each in package.begun}) == 2
    assert "another" not in send(tmp_path, table(1))


def test_a_folder_that_was_kept_before_is_replaced_unless_it_was_sent(wandb, tmp_path):
    package = wandb()
    send(tmp_path, table())
    send(tmp_path, table(4))
    first, second = (each.folder for each in package.begun)
    assert (first.exists(), second.exists()) == (False, True)
    (second / "run-a.wandb.synced").touch()
    send(tmp_path, table(5))
    assert second.exists()


def test_names_and_places_are_what_its_server_allows(wandb, tmp_path):
    package = wandb()
    send(tmp_path, table(project="geo/sweep #1", name="a/b c.größe", tags=["", "t" * 99]), "wandb")
    send(tmp_path, table(), "wandb:team/other")
    assert (package.begun[0].project, package.begun[0].name) == ("geo-sweep -1", "a/b c.größe")
    assert package.begun[0].tags == ["t" * 64]
    assert (package.begun[1].entity, package.begun[1].project) == ("team", "other")


def test_the_record_of_what_was_sent_is_not_read_by_others(wandb, tmp_path):
    wandb(api_key="k" * 40)
    send(tmp_path, table(1, numbers={"reward": [0.5]}))
    (record,) = (tmp_path / "wandb").glob("*.json")
    assert json.loads(record.read_text()) == {"number": 0, "rows": {"0": {"reward": 0.5}}, "sending": False}
    assert record.stat().st_mode & 0o777 == 0o600

"""The command line."""

import json
import re
import stat

import pytest

from rolloutlab.cli.commands import main
from rolloutlab.fsutil import Lock


def test_the_passcode_is_made_once_for_the_owners_eyes_only(tmp_path, capsys):
    said = []
    for _ in range(2):
        assert main(["passcode", "--home", str(tmp_path)]) == 0
        said.append(capsys.readouterr().out.strip())
    assert said[0] == said[1]
    assert len(said[0].replace("-", "")) == 12
    file = tmp_path / "service" / "passcode"
    assert file.read_text() == said[0]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_lab_folder_that_cannot_be_locked_is_an_error_in_words(tmp_path, capsys):
    (tmp_path / "service" / "lock").mkdir(parents=True)
    assert main(["serve", "--home", str(tmp_path)]) == 2
    assert f"LabError: {tmp_path / 'service' / 'lock'} cannot be locked: Is a directory" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["passcode.lock", "passcode.draft"])
def test_a_passcode_that_cannot_be_made_is_an_error_in_words(tmp_path, capsys, name):
    (tmp_path / "service" / name).mkdir(parents=True)
    assert main(["passcode", "--home", str(tmp_path)]) == 2
    assert re.search(r"LabError: .*passcode.* cannot be (locked|written): Is a directory", capsys.readouterr().err)


def test_a_process_that_hangs_while_it_makes_the_passcode_is_told_with_what_to_type(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("rolloutlab.fsutil._BRIEF", 0.0)
    path = tmp_path / "service" / "passcode.lock"
    path.parent.mkdir()
    with Lock(path):
        assert main(["passcode", "--home", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert f"LabError: another process has held {path} for 0 s: it is suspended or hangs" in said
    assert f"-> !lsof {path} says which; end it, and run the cell again" in said
    assert main(["passcode", "--home", str(tmp_path)]) == 0


def test_a_passcode_that_was_written_by_hand_is_kept(tmp_path, capsys):
    (tmp_path / "service").mkdir()
    (tmp_path / "service" / "passcode").write_text("my own words of mine\n")
    main(["passcode", "--home", str(tmp_path)])
    assert capsys.readouterr().out == "my own words of mine\n"


def test_a_passcode_that_could_be_found_by_trying_is_refused(tmp_path, capsys):
    file = tmp_path / "service" / "passcode"
    file.parent.mkdir()
    file.write_text("open-sesame\n")
    assert main(["passcode", "--home", str(tmp_path)]) == 2
    assert f"-> rm {file}" in capsys.readouterr().err


@pytest.mark.clause("D1", "D6")
def test_a_client_metadata_document_is_printed_for_its_address(capsys):
    url = "https://example.org/rolloutlab.json"
    assert main(["client-metadata", url, "--redirect", "https://hub.example/user/jo/rolloutlab/callback"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["client_id"] == url
    assert said["client_name"] == "rolloutlab"
    assert said["redirect_uris"] == ["https://hub.example/user/jo/rolloutlab/callback"]
    assert said["token_endpoint_auth_method"] == "none"


@pytest.mark.clause("D3")
def test_a_client_metadata_document_without_redirects_is_for_a_notebook_on_this_machine(capsys):
    main(["client-metadata", "https://example.org/rolloutlab.json"])
    uris = json.loads(capsys.readouterr().out)["redirect_uris"]
    assert uris == ["http://127.0.0.1:8888/rolloutlab/callback", "http://localhost:8888/rolloutlab/callback"]


@pytest.mark.clause("D1")
@pytest.mark.parametrize("url", ["http://example.org/c", "https://example.org", "example.org/c"])
def test_an_address_that_is_none_for_a_document_is_refused(url, capsys):
    assert main(["client-metadata", url]) == 2
    assert "https" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "problem", "hint"),
    [
        ("--lora-rank=0", "--lora-rank: must be greater than 0, not '0'", "--lora-rank=16"),
        ("--template-date=today", "--template-date: 'today' cannot be used", "--template-date=2025-01-31"),
        ("--device=gpu", "--device: must be 'cuda', 'mps' or 'cpu', not 'gpu'", "--device=cpu"),
        ("--gradient-checkpointing=perhaps", "--gradient-checkpointing: must be a valid boolean", "=True"),
    ],
)
def test_an_option_of_how_a_policy_is_loaded_is_checked_before_the_service_starts(
    tmp_path, capsys, option, problem, hint
):
    assert main(["serve", "--home", str(tmp_path), option]) == 2
    printed = capsys.readouterr().err
    assert problem in printed
    assert hint in printed
    assert not (tmp_path / "service").exists()

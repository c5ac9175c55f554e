"""A service that watches who is attached goes on where that cannot be seen."""

import asyncio
import os
import resource

import pytest

from rolloutlab.errors import InputError, LabError, PolicyError
from rolloutlab.service import serve
from rolloutlab.service.lifecycle import Folder, watch
from rolloutlab.service.listen import ListenAddress
from rolloutlab.settings import ModelSettings


@pytest.fixture
def no_descriptor_left():
    """Has the process open no more files, until it is asked again."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    def begin():
        lowest = os.open(os.devnull, os.O_RDONLY)
        os.close(lowest)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))

    def end():
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    yield begin, end
    end()


@pytest.mark.parametrize("clients", [0, 1])
def test_a_service_without_descriptors_goes_on_watching_and_ends_once_no_client_is_left(
    tmp_path, no_descriptor_left, clients, caplog
):
    folder, looks, stopped = Folder(tmp_path / "service"), [], []
    begin, end = no_descriptor_left
    (folder.path / "clients").mkdir()
    for i in range(clients):  # of a process that has ended
        (folder.path / "clients" / f"{i}.lock").touch()

    def attached():
        begin() if not looks else None
        try:
            looks.append(Folder.attached(folder))
        finally:
            end()
        return looks[-1]

    folder.attached = attached
    asyncio.run(watch(folder, lambda: False, 0.004, lambda: stopped.append(1)))
    assert looks[0]
    assert "attached clients cannot be checked: " in caplog.text
    assert (looks[-1], stopped) == (False, [1])
    assert list((folder.path / "clients").iterdir()) == []


@pytest.mark.parametrize("linger", [0.0, 0.004])
def test_a_service_stays_for_its_client_and_ends_soon_after_it(tmp_path, linger):
    folder, looks, stopped = Folder(tmp_path / "service"), [True, True, False, False], []
    folder.attached = lambda: looks.pop(0) if looks else False
    asyncio.run(watch(folder, lambda: False, linger, lambda: stopped.append(len(looks))))
    assert stopped[0] < 2


def test_a_service_without_an_engine_leaves_its_port(tmp_path, monkeypatch):
    listeners, listen = [], serve._listen

    def refuse(*given, **options):
        raise PolicyError("no engine")

    monkeypatch.setattr(serve, "_listen", lambda *given: listeners.append(listen(*given)) or listeners[0])
    monkeypatch.setattr(serve, "open_engine", refuse)
    address = ListenAddress("127.0.0.1")
    with pytest.raises(PolicyError, match="no engine"):
        serve.serve(Folder(tmp_path / "service"), address, 0, "tiny", None, 60.0, model=ModelSettings())
    assert [each.fileno() for each in listeners] == [-1]


def test_a_service_that_cannot_read_its_key_closes_what_it_has_opened(tmp_path, monkeypatch):
    folder, closed, listeners, listen = Folder(tmp_path / "service"), [], [], serve._listen

    class Part:
        def __init__(self, name):
            self.close = lambda: closed.append(name)

    monkeypatch.setattr(serve, "_listen", lambda *given: listeners.append(listen(*given)) or listeners[0])
    monkeypatch.setattr(serve, "open_engine", lambda *given, **options: Part("engine"))
    monkeypatch.setattr(serve, "_open", lambda *given, **options: (Part("database"), None, Part("jobs")))
    (folder.path / "key").mkdir()
    with pytest.raises(LabError, match="key cannot be read"):
        serve.serve(folder, ListenAddress("127.0.0.1"), 0, "tiny", None, 60.0, model=ModelSettings())
    assert closed == ["jobs", "engine", "database"]
    assert [each.fileno() for each in listeners] == [-1]


@pytest.mark.parametrize("content", [b"\xff\xfe key", b"\x80" * 32, "é".encode("utf-16")])
def test_a_key_may_be_any_bytes(tmp_path, content):
    folder = Folder(tmp_path / "service")
    (folder.path / "key").write_bytes(content)
    assert folder.key() == folder.key() == content


def test_a_secret_that_cannot_be_read_is_an_error_with_what_to_type(tmp_path):
    folder = Folder(tmp_path / "service")
    (folder.path / "key").mkdir()
    with pytest.raises(LabError, match="key cannot be read: Is a directory") as refused:
        folder.key()
    assert refused.value.hint.startswith(f"ls -ld {folder.path / 'key'}")
    (folder.path / "passcode").write_bytes(b"\xff" * 20)
    with pytest.raises(InputError, match=r"the passcode in .* is not UTF-8") as refused:
        folder.passcode()
    assert refused.value.hint == f"rm {folder.path / 'passcode'}"


@pytest.mark.parametrize("name", ["nothing.pem", "folder.pem", "junk.pem", "a\0b.pem", "x" * 300])
def test_files_that_are_no_certificate_are_an_error_with_what_to_type(tmp_path, name):
    (tmp_path / "folder.pem").mkdir()
    (tmp_path / "junk.pem").write_bytes(bytes(range(256)))
    with pytest.raises(InputError, match="are not a certificate and its unencrypted key") as refused:
        ListenAddress("127.0.0.1", tmp_path / name, tmp_path / name)
    assert refused.value.hint.startswith("openssl x509")

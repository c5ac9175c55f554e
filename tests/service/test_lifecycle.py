"""A service that watches who is attached goes on where that cannot be seen."""

import asyncio
import os
import resource

import pytest

from rolloutlab.errors import PolicyError
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


def test_a_service_without_an_engine_leaves_its_port(tmp_path, monkeypatch):
    listeners, listen = [], serve._listen

    def refuse(*given):
        raise PolicyError("no engine")

    monkeypatch.setattr(serve, "_listen", lambda *given: listeners.append(listen(*given)) or listeners[0])
    monkeypatch.setattr(serve, "open_engine", refuse)
    address = ListenAddress("127.0.0.1")
    with pytest.raises(PolicyError, match="no engine"):
        serve.serve(Folder(tmp_path / "service"), address, 0, "tiny", None, 60.0, model=ModelSettings())
    assert [each.fileno() for each in listeners] == [-1]

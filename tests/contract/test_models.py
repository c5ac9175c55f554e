"""Registering models and listing checkpoints, as a client sees it."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from rolloutlab.errors import NotFoundError, RefusedError


def test_a_registered_model_has_checkpoint_zero_at_once(service):
    model = service.register()
    listed = service.call("GET", f"/v1/preview/models/{model.id}/checkpoints")
    assert [checkpoint["step"] for checkpoint in listed["data"]] == [0]
    assert listed["object"] == "list"
    assert listed["has_more"] is False


def test_registering_again_returns_the_existing_one_only_when_asked(service):
    first = service.register()
    assert service.register().id == first.id
    with pytest.raises(RefusedError, match="the model lab/first exists"):
        service.call("POST", "/v1/preview/models", json={"project": "lab", "name": "first"})


def test_many_who_register_one_name_at_once_get_one_model(service):
    with ThreadPoolExecutor(8) as pool:
        ids = set(pool.map(lambda _: service.register("same").id, range(24)))
    assert len(ids) == 1
    assert len(list((service.folder / "models").iterdir())) == 1


def test_another_base_model_than_the_served_one_is_refused(service):
    with pytest.raises(RefusedError, match="'other' is not served here; this service serves 'tiny'"):
        service.call("POST", "/v1/preview/models", json={"project": "lab", "name": "x", "base_model": "other"})


def test_a_name_with_a_slash_is_refused_at_its_place(service):
    with pytest.raises(RefusedError, match=r"422 body\.name"):
        service.call("POST", "/v1/preview/models", json={"project": "lab", "name": "a/b"})


def test_checkpoints_of_an_unknown_model_are_not_found(service):
    with pytest.raises(NotFoundError, match="there is no model with id"):
        service.call("GET", "/v1/preview/models/00000000-0000-4000-8000-000000000000/checkpoints")

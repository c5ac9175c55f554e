"""The list of models of a service, read leniently: services differ in what they list beside a name."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from rolloutlab.api.wire.training import ModelCard


def model_cards(body: Any) -> list[ModelCard] | None:
    """Read the models in the answer to `GET /models`, `{"data": [...]}` or a bare list; None if it is no such list.

    A card without an `id` is skipped. Of a card with invalid values, the valid ones are kept. A list in which no card
    has an `id` is not a list of models. Neither is `{"models": ...}`, whose entries have other fields.
    """
    listed = body.get("data") if isinstance(body, Mapping) else body or None
    if not isinstance(listed, list):
        return None
    cards = [card for each in listed if (card := _card(each))]
    return cards if cards or not listed else None


def _card(sent: Any) -> ModelCard | None:
    if not isinstance(sent, Mapping) or not isinstance(sent.get("id"), str) or not sent["id"]:
        return None
    try:
        return ModelCard.model_validate(sent)
    except ValidationError as error:
        wrong = {each["loc"][0] for each in error.errors()}
        return ModelCard.model_validate({name: value for name, value in sent.items() if name not in wrong})

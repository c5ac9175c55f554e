"""What every call shares: the settings in force, the lab, and the way to the service."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from rolloutlab.client.embedded import Embedded
from rolloutlab.context.tool import ContextTools
from rolloutlab.http import Http
from rolloutlab.scoring import Functions
from rolloutlab.settings import Address, Settings, read_settings
from rolloutlab.store.lab import Lab
from rolloutlab.store.records import StoredCollection

if TYPE_CHECKING:
    from rolloutlab.context.server import ContextServer

DEFAULT_MODEL = "lab/practice"


class SessionBase:
    """What one notebook holds."""

    def __init__(self, settings: Settings | None = None, *, http: Http | None = None) -> None:
        if settings:
            self.settings = settings
        self._http = http or Http()
        self._selected = DEFAULT_MODEL
        self._known: set[tuple[str, str]] = set()
        """Services' addresses and the models registered there."""
        self._scorers: dict[str, tuple[Functions, Mapping[str, float] | None]] = {}
        """What last scored each generation, and its weights, by label; under the bare name, what last scored any."""
        self._context: dict[str, ContextTools] = {}
        """Context servers by the names that a notebook gave them."""
        self._servers: dict[str, ContextServer] = {}
        """The connections to them, by address."""
        self._former: list[Address] = []
        """Services talked to before, newest first."""
        self.seen = {DEFAULT_MODEL}
        """Names of models that a service told of; tab completion offers them."""

    @cached_property
    def settings(self) -> Settings:
        """What is in force; `connect` puts others in their place."""
        return read_settings()

    @cached_property
    def embedded(self) -> Embedded:
        """The embedded service of the lab folder."""
        return Embedded(self.settings, self._http)

    @cached_property
    def store(self) -> Lab:
        """The lab's memory on disk."""
        return Lab(self.settings.database)

    def close(self) -> None:
        """Let go of the lab and the service; the embedded service ends by itself once nobody needs it.

        Whatever is called after that opens them anew.
        """
        self._http.close()
        for held in ("embedded", "store"):
            if held in self.__dict__:
                self.__dict__.pop(held).close()

    def _scorer_of(self, collection: StoredCollection) -> tuple[Functions, Mapping[str, float] | None] | None:
        """What last scored a generation in this notebook, or else another generation of it, and its weights."""
        label = f"{collection.name}:{collection.generation}"
        return self._scorers.get(label) or self._scorers.get(collection.name)

    def _bearing(self, address: Address) -> Address:
        """A service, with the tokens of who signs in where it has no key."""
        return address

    def _address(self, tick: Callable[[], None] = lambda: None) -> Address:
        return self.settings.service or self._embedded_address(tick)

    def _embedded_address(self, tick: Callable[[], None] = lambda: None, *, start_empty: bool = False) -> Address:
        return replace(self.embedded.address(tick, start_empty=start_empty), project=self.settings.project)

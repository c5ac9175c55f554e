"""Collections to files and back, and what training needs of those from elsewhere."""

from collections.abc import Callable, Sequence
from os import PathLike
from pathlib import Path

from rolloutlab.client.logprobs import score
from rolloutlab.collection import Collection
from rolloutlab.errors import InputError
from rolloutlab.exchange.exports import Choosing, Export, export
from rolloutlab.exchange.imports import import_file
from rolloutlab.logprobs import add_logprobs
from rolloutlab.session.collections import CollectionCalls
from rolloutlab.session.model import ModelCalls
from rolloutlab.widgets.progress import Progress


class ExchangeCalls(CollectionCalls, ModelCalls):
    """Collections that leave and that arrive."""

    def export(
        self,
        names: str | Sequence[str],
        path: str | PathLike[str],
        format: str | None = None,  # noqa: A002 - what it is called on the line
        *,
        best: bool = False,
        min_reward: float | None = None,
        overwrite: bool = False,
    ) -> Export:
        """Write collections to a file, whole or not at all.

        format: `jsonl` or `parquet`, whole trajectories with their rewards, but not the history of those, nor how the
        collection was to be sampled and what that cost; `openai`, fine-tuning messages; `art`, trajectory groups of
        openpipe-art. By default what the path ends in says it. best: of each group only the highest reward.

        Raises:
            NotFoundError: no such collection. InputError: the file is there already, cannot be written, is of no known
            format, or nothing would be in it.
        """
        found = [self.store.find(name) for name in ([names] if isinstance(names, str) else names)]
        if not found:
            raise InputError("no collection is given", hint="%export NAME FILE")
        target = _path(path)
        with Progress(f"writing {target.name}") as shown:
            total = sum(self.store.collection(f"{each.name}:{each.generation}").trajectories for each in found)
            chosen = Choosing(best, min_reward)
            return export(
                self.store, found, target, format, chosen, overwrite=overwrite, written=lambda n: shown.update(n, total)
            )

    def import_(
        self,
        path: str | PathLike[str],
        name: str | None = None,
        format: str | None = None,  # noqa: A002 - what it is called on the line
        *,
        logprobs: bool = False,
    ) -> Collection | list[Collection]:
        """Read a file into a new generation of a collection, or of each when the file holds several: all or nothing.

        name: what the collection is called, by default what the file says. format: as in `export`, by default what the
        first line looks like. logprobs: then `logprobs` of each.

        Raises:
            NotFoundError: there is no such file. InputError: something in it is wrong; the message says where.
        """
        source = _path(path)
        with Progress(f"reading {source.name}") as shown:
            labels = import_file(self.store, source, name, format, lambda n: shown.update(n, None))
        found = [self.logprobs(label) if logprobs else self.collection(label) for label in labels]
        return found[0] if len(found) == 1 else found

    def logprobs(self, name: str, model: str | None = None, *, say: Callable[[str], None] = print) -> Collection:
        """Give what the assistant said the token ids and logprobs that training needs, as a new generation.

        For conversations from elsewhere; rewards are kept. model: whose logprobs, by default those of the newest
        checkpoint of the selected one.

        Raises:
            NotFoundError: no such collection or model. NothingTrainsError: the policy can read none of it.
            ServiceError: the service cannot do this.
        """
        collection, target = self.store.collection(name), model or self._selected
        with Progress(f"logprobs of {name}") as shown:
            address = self._address(lambda: shown.update(0, None, "starting the embedded service"))
            if model is None:
                self._register(target)
            outcome = add_logprobs(
                self.store,
                collection,
                lambda histories: self._http.run(score(self._http, address, target, histories)),
                lambda n: shown.update(n, collection.trajectories),
            )
        for line in outcome.words():
            say(line)
        return self.collection(outcome.label or name)


def _path(path: str | PathLike[str]) -> Path:
    if not isinstance(path, str | PathLike):
        raise InputError(f"a {type(path).__name__} is no path of a file", hint="'capitals.jsonl'")
    return Path(path).expanduser()

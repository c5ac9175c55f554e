"""Sampling: `chat`, and what looks ahead of it, completes it and goes on from it."""

from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

from rolloutlab.client.inference import complete, stream
from rolloutlab.collection import Collection
from rolloutlab.errors import InputError, interrupted
from rolloutlab.http import MAX_CONNECTIONS
from rolloutlab.sampling.arrivals import Arrivals
from rolloutlab.sampling.rollout import Player
from rolloutlab.sampling.tools import Tools
from rolloutlab.sampling.work import Preview, Work, continued, resumed, sampled
from rolloutlab.session.collections import CollectionCalls
from rolloutlab.session.model import ModelCalls
from rolloutlab.session.tools import Tool, ToolCalls
from rolloutlab.widgets.progress import Progress
from rolloutlab.wire.chat import ChatCompletion, ChatRequest

CONCURRENT = 64
"""Requests under way at once; a service batches what is."""


class ChatCalls(CollectionCalls, ToolCalls, ModelCalls):
    """Prompts to collections."""

    def chat(
        self,
        name: str,
        prompt: str | Sequence[Mapping[str, Any]],
        *,
        n: int = 1,
        over: Any = None,
        system: str | None = None,
        model: str | None = None,
        temperature: float = 1.0,
        top_p: float = 1.0,
        max_tokens: int | None = None,
        stop: str | Sequence[str] = (),
        seed: int | None = None,
        tools: Sequence[Tool] = (),
        max_turns: int = 10,
        concurrency: int = CONCURRENT,
        variables: Mapping[str, Any] | None = None,
    ) -> Collection:
        """Sample `n` completions per prompt into a new generation of the collection `name`.

        prompt: the text of a cell (`user: ...`) or a list of messages; `{{x}}` is a column of the row, then one of
        `variables`. An empty assistant message in it is a place where the policy answers, and so is its end.
        over: a DataFrame or a list, one group per row. system: a system message before the prompt.
        model: a model to sample instead of the selected one's newest checkpoint. seed: the group of row i is sampled
        with seed + i; drawn and recorded when absent. stop: texts that end a completion.
        tools: what the policy may call: functions, described by signature and docstring and run here, and names of
        context servers that `add_tools` gave, or of their tools (`docs.find`); results and errors are recorded as tool
        messages. max_turns: answers in a row that may call tools.
        concurrency: requests under way at once.

        Every completion is stored as it arrives: what had arrived before an interrupt or an error is kept, and `resume`
        samples the rest.

        Raises:
            InputError: the prompt, a variable or a setting is wrong; nothing was sent.
            SamplingError: some requests failed; the others are kept.
            ServiceError, NotFoundError: as the service answered.
        """
        settings = {
            "model": model or self._selected,
            "n": n,
            "temperature": temperature,
            "top_p": top_p,
            "max_tokens": max_tokens,
            "stop": stop,
            "seed": seed,
            "max_turns": max_turns,
        }
        work = sampled(name, prompt, over, system, variables or {}, settings, Tools(self._all(tools)))
        return self._sample(work, concurrency, register=model is None)

    def preview(
        self,
        name: str,
        prompt: str | Sequence[Mapping[str, Any]] = "",
        *,
        resume: bool = False,
        continue_chat: bool = False,
        over: Any = None,
        system: str | None = None,
        tools: Sequence[Tool] = (),
        variables: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> Preview:
        """What `chat` would send with the same arguments: how many requests, and the first of them as rendered.

        resume, continue_chat: what the call of that name would send instead. settings: as those of `chat`.

        Raises:
            InputError, NotFoundError: as the call itself.
        """
        known = Tools(self._all(tools))
        if resume:
            return Preview(resumed(self.store, name, known))
        settings = {"model": self._selected} | {k: v for k, v in settings.items() if v is not None}
        _check_concurrency(settings.pop("concurrency", CONCURRENT))
        if continue_chat:
            return Preview(continued(self.store, name, prompt, variables or {}, settings, known))
        return Preview(sampled(name, prompt, over, system, variables or {}, settings, known))

    def resume(self, name: str, *, tools: Sequence[Tool] = (), concurrency: int = CONCURRENT) -> Collection:
        """Sample what is missing of a collection, as it was begun; nothing that is there is sampled again.

        tools: the functions that it was begun with.

        Raises:
            NotFoundError: no such collection. InputError: it was not sampled here, or with other tools; and as `chat`.
        """
        return self._sample(resumed(self.store, name, Tools(self._all(tools))), concurrency)

    def continue_chat(
        self,
        name: str,
        prompt: str | Sequence[Mapping[str, Any]],
        *,
        model: str | None = None,
        temperature: float | None = None,
        top_p: float | None = None,
        max_tokens: int | None = None,
        stop: str | Sequence[str] = (),
        seed: int | None = None,
        tools: Sequence[Tool] = (),
        max_turns: int | None = None,
        concurrency: int = CONCURRENT,
        variables: Mapping[str, Any] | None = None,
    ) -> Collection:
        """Go on with every conversation of a collection, into a new generation of it; the older one stays.

        prompt: what is said next, as in `chat`, whose other arguments and errors are the same; settings that are not
        given are those that the collection was sampled with. tools: the functions that it was sampled with.
        """
        settings = {
            "model": model or self._selected,
            "temperature": temperature,
            "top_p": top_p,
            "max_tokens": max_tokens,
            "stop": stop,
            "seed": seed,
            "max_turns": max_turns,
        }
        work = continued(self.store, name, prompt, variables or {}, settings, Tools(self._all(tools)))
        return self._sample(work, concurrency, register=model is None)

    def _sample(self, work: Work, concurrency: int, *, register: bool = False) -> Collection:
        """Play the rollouts of `work`; what arrives is stored at once.

        After an interrupt all that had arrived is stored before anything is counted or said, and other processes may
        sample the collection only after that: what they find missing is what is missing.
        """
        _check_concurrency(concurrency)
        self.store.check_writable()
        arrivals = Arrivals(self.store, work)

        async def play(player: Player) -> None:
            with arrivals.under_way():
                await player.play(work.rollouts, min(concurrency, arrivals.total, MAX_CONNECTIONS))

        with closing(arrivals), Progress(f"sampling {work.name}") as shown:
            address = self._address(lambda: shown.update(0, None, "starting the embedded service"))
            if register and (address.base_url, work.plan.model) not in self._known:
                self._register(work.plan.model)

            async def answer(request: ChatRequest) -> ChatCompletion:
                if arrivals.total == 1:
                    return await stream(self._http, address, request, arrivals.say)
                return await complete(self._http, address, request)

            # an embedded service that is gone comes back at another address
            again = self._http.retries() if self.settings.service else None
            player = Player(work.plan, work.groups, answer, work.tools, arrivals.take, arrivals.fail, again)
            try:
                self._http.run(play(player), lambda: self._tick(shown, arrivals, player), to_its_end=True)
            except KeyboardInterrupt as error:
                interrupted(error, *arrivals.interrupted())
                raise
            except BaseException:
                shown.keep(arrivals.kept())
                raise
        arrivals.check()
        assert arrivals.collection, "without any answer the check has raised"
        return self._held(self.store.kept(arrivals.collection.id))

    def _tick(self, shown: Progress, arrivals: Arrivals, player: Player) -> None:
        """How far it is, and a sign-in that a tool wants on the way."""
        shown.update(arrivals.done, arrivals.total, arrivals.note(player.waits), arrivals.text)
        self._show_sign_ins()


def _check_concurrency(concurrency: Any) -> None:
    if not isinstance(concurrency, int) or concurrency < 1:
        raise InputError(f"concurrency: {concurrency} is no whole number above 0", hint="--concurrency 64")

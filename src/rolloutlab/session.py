"""Session: the public Python API of a notebook or script; every magic is one call of it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import cached_property, partial
from os import PathLike
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Unpack, overload

from rolloutlab.api.budget import Budget
from rolloutlab.api.embedded import Embedded
from rolloutlab.api.http.client import HttpClient
from rolloutlab.api.prices import Tokens
from rolloutlab.api.training import upload
from rolloutlab.auth.redirect.broker import Brokers
from rolloutlab.auth.sign_in import sign_in, sign_in_options, sign_out
from rolloutlab.connection import Connection, Connector
from rolloutlab.environments.protocol import Source
from rolloutlab.environments.source import rows_of_round, source_of, source_or_none
from rolloutlab.errors import InputError
from rolloutlab.keywords import takes
from rolloutlab.objective.algorithms import add_algorithm
from rolloutlab.objective.options import settle
from rolloutlab.runtime import LoopThread
from rolloutlab.sampling.config import new_seed
from rolloutlab.sampling.dataset import check_repeatable, rows_of
from rolloutlab.sampling.mcp.registry import McpRegistry
from rolloutlab.sampling.metering import Meter, Terms, terms_of
from rolloutlab.sampling.options import (
    ChatOptions,
    ResumeOptions,
    RolloutOptions,
    SamplingOptions,
    SessionOptions,
    TurnOptions,
)
from rolloutlab.sampling.plan import (
    SamplingRun,
    check_environment,
    plan_chat,
    plan_continuation,
    plan_program,
    plan_resume,
    plan_sessions,
)
from rolloutlab.sampling.preview import Preview, cost_line
from rolloutlab.sampling.programs.program import KnownPrograms, Program, Solve, program_of
from rolloutlab.sampling.programs.sessions import SESSIONS_TIMEOUT, run_sessions
from rolloutlab.sampling.prompt import Row
from rolloutlab.sampling.run import CONCURRENT, check_concurrency, sample
from rolloutlab.sampling.split import DataSplit, split_rows
from rolloutlab.sampling.template import Prompt
from rolloutlab.sampling.tools import Tools
from rolloutlab.scoring import sandbox
from rolloutlab.scoring.ask import ModelAsker
from rolloutlab.scoring.foreign import ForeignReward, grader_reward
from rolloutlab.scoring.functions import Functions, Scorers
from rolloutlab.scoring.judge import Judge, JudgeOptions, judge_collection, store_scores
from rolloutlab.scoring.score import ScoringRequest, make_calls, score_collection
from rolloutlab.scoring.workers import RewardOptions
from rolloutlab.search.build import SearchOptions
from rolloutlab.search.open import LabIndex, SearchPlaces
from rolloutlab.search.query import Search
from rolloutlab.settings import EMBEDDED, Settings
from rolloutlab.store.bare_names import BareNames
from rolloutlab.store.damage import check_lab
from rolloutlab.store.lab import Lab
from rolloutlab.store.models import StoredCollection, is_asked_for
from rolloutlab.store.spending import JUDGING, SAMPLING, TRAINING
from rolloutlab.training.checkpoint_export import CheckpointExporter
from rolloutlab.training.checkpoints import LabModels
from rolloutlab.training.compare import (
    CompareOptions,
    SideSampler,
    best_checkpoint,
    find_checkpoints,
    find_collection,
    note_on_base,
)
from rolloutlab.training.custom_loss import publish_loss
from rolloutlab.training.dry_run import DryRun, FineTuningCheck, check_fine_tuning
from rolloutlab.training.fine_tuning import (
    FineTuning,
    Names,
    check_sft,
    plan_fine_tuning,
    submit_fine_tuning,
)
from rolloutlab.training.form import TrainingForm
from rolloutlab.training.job import Job
from rolloutlab.training.jobs import LabJobs
from rolloutlab.training.lag import add_prediction
from rolloutlab.training.loop import Loop, run_loop
from rolloutlab.training.loop_steps import OF_ROUNDS, LoopOptions, LoopSteps, Schedule
from rolloutlab.training.models import Models, SelectedModel
from rolloutlab.training.refusals import check_honoured
from rolloutlab.training.submission import JobOptions, check_config, expand_options, gather_for, prepare, submit
from rolloutlab.training.sweep import Loops, LoopSettings, run_loops
from rolloutlab.training.variants import check_grid
from rolloutlab.trajectories.branch import Branch, copy_trajectories, take_branch
from rolloutlab.trajectories.collection import Collection, group_of, rows_to_show, select
from rolloutlab.trajectories.files.exchange import LabFiles
from rolloutlab.trajectories.logprobs import ask_service
from rolloutlab.trajectories.rewards_view import RewardsView
from rolloutlab.trajectories.tables import catalogue, match_collections
from rolloutlab.trajectories.top_up import FACTOR, check_top_up, plan_first_sizes, top_up_groups
from rolloutlab.widgets.login.frontend import can_ask, new_broker
from rolloutlab.widgets.login.render import SignInTable
from rolloutlab.widgets.model_list import LabRecord
from rolloutlab.widgets.progress import Live, Progress, waiting

if TYPE_CHECKING:
    import pandas as pd

    from rolloutlab.runs.catalogue import RunList
    from rolloutlab.runs.run import Run
    from rolloutlab.runs.view import RunView
    from rolloutlab.trajectories.comparison import Comparison, Comparisons
    from rolloutlab.trajectories.search_view import SearchResult

Options = Mapping[str, Any]
Say = Callable[[str], None]
Weights = Mapping[str, float] | None
_CHECKING = "checking what would train"
_PREDICTING = "comparing old completions with the checkpoint that it starts from"
_READ_SECONDS, _CHECK_SECONDS, _SUM_SECONDS = 5e-4, 1e-4, 5e-5
"""Approximate seconds per trajectory for reading, checking and comparing. If they add up to a long time, `Progress`
shows a line before the work begins."""


class Session:
    """A lab and the service that it talks to, for one notebook or script.

    settings: where the lab is and which service it talks to; by default from the environment. Nothing is opened or
    started before a call needs it.
    """

    models: LabModels
    """The models of the service: `list`, `export`, and `delete`, `lost`, `recover`, `purge` for their checkpoints."""
    files: LabFiles
    """Files of collections: `export`, `import_`; `logprobs` for imported completions, `join_results` for sessions."""
    index: LabIndex
    """The search index: `status`, `embed_with`, `rebuild`."""
    tools: McpRegistry
    """MCP servers, whose tools a policy can call: `add`, `list`, `call`."""

    def __init__(self, settings: Settings | None = None, *, http: HttpClient | None = None) -> None:
        self._brokers = Brokers(new_broker)
        connector = self._connector = Connector(settings, http or HttpClient(), self._brokers, can_ask, waiting)
        self._models = Models(self._connector)
        exporter = CheckpointExporter(connector, lambda: self.store, lambda: self._jobs, Progress)
        self.models = LabModels(self._models, exporter, self._read_lab)
        self.files = LabFiles(lambda: self.store, connector, self.collection, self._models.register_selected, Progress)
        self.tools = McpRegistry(connector, self._brokers.tick)
        self._names = BareNames()
        self._scorers, self._reward_loop = Scorers(), LoopThread("rolloutlab-rewards")
        self._scoring: Meter | None = None
        self._jobs = LabJobs(lambda: self.store, self._connector, self._scorers)
        self._programs = KnownPrograms()
        self._search = SearchPlaces(
            lambda: self.store, lambda: self.settings, lambda: connector.http, connector.key_variables
        )
        self.index = LabIndex(self._search, lambda: self.__dict__.get("store"), Progress)

    @property
    def settings(self) -> Settings:
        """The present settings, which `connect` replaces."""
        return self._connector.settings

    @settings.setter
    def settings(self, settings: Settings) -> None:
        self._connector.settings = settings

    @property
    def embedded(self) -> Embedded:
        """The embedded service of the lab folder."""
        return self._connector.embedded

    @cached_property
    def store(self) -> Lab:
        """The store of the lab: one SQLite file."""
        return Lab(self.settings.database, self._names)

    def close(self) -> None:
        """Close the lab and detach from the service, which exits by itself without clients; later calls reopen both."""
        self._reward_loop.close()
        self._search.close()
        self.tools.close()
        self._connector.close()
        if "store" in self.__dict__:
            self.__dict__.pop("store").close()

    def connect(
        self,
        service: str | None = None,
        *,
        inference: str | None = None,
        key_env: str | None = None,
        key_keyring: bool = False,
        project: str | None = None,
        search: str | None = None,
        insecure_http: bool = False,
    ) -> Connection:
        """Connect to another service, if it responds; without an argument, return the present connection.

        After an error the session stays connected to the previous service.

        Args:
            service: `embedded`, a profile of the settings file, or a URL.
            inference: the URL of chat completions, if it differs from that of the service.
            key_env: the environment variable that holds the key.
            key_keyring: read the key from the keyring of this machine; if it has none, prompt for it without echo and
                store it.
            project: TEAM/PROJECT, under which the service counts tokens.
            search: the URL of a Chroma collection that the call `search` queries from now on, or `lab` for the lab
                itself. The service does not change.
            insecure_http: send the key unencrypted to an http address in your own network, until this session ends.

        Raises:
            InputError: an unknown profile, an invalid argument, or a key that would be sent unencrypted.
            UnreachableError: no response.
            SignInError: a key or a sign-in is needed.
            ServiceError: what answers is not a service of this kind.
        """
        if search is not None:
            if service or inference or project or key_keyring:
                message = "search= cannot be combined with the arguments of a service"
                raise InputError(message, hint=f"%connect --search {search}")
            return self._connector.search_at(self._search.switch(search, key_env, insecure_http=insecure_http))
        before = self._connector.name
        options = {"inference": inference, "key_env": key_env, "key_keyring": key_keyring or None, "project": project}
        connection = self._connector.connect(service, options, insecure_http=insecure_http)
        another = self._connector.name != before
        self._models.record_listed(connection.models, to_another=another, trains=connection.trains)
        limited = connection.address and connection.address.budget is not None
        return replace(connection, spent=self.store.spending.at(self._terms.service)) if limited else connection

    def login(
        self,
        server: str | None = None,
        *,
        keep: bool | None = None,
        paste: bool = False,
        issuer: str | None = None,
        client_id: str | None = None,
        secret_env: str | None = None,
        redirect_port: int | None = None,
        dangerously_without_pkce: bool = False,
    ) -> SignInTable:
        """Sign in to an MCP server or a service; by default to the connected service.

        The consent page of its authorization server opens in the browser; the cell waits for the redirect.

        Args:
            server: its URL; `embedded` is the MCP server of the embedded service, which is started if needed.
            keep: True stores the tokens for every kernel of this lab, in the keyring of this machine or in a file that
                only you can read. False keeps them until this kernel ends. None does what the last sign-in there did.
            paste: prompt for the URL that the browser ends on.
            issuer: the authorization server, if the server does not name it.
            client_id: a client registered there for rolloutlab.
            secret_env: the environment variable that holds its secret.
            redirect_port: a local port. Needed if the client, or the client metadata document, is registered with the
                redirect URI http://127.0.0.1:PORT/callback.
            dangerously_without_pkce: continue if the authorization server does not declare PKCE, without which an
                authorization code can be stolen.

        Raises:
            SignInError: denied, timed out, or the server failed a check; the message gives the reason.
            UnreachableError: no response.
            InputError: not a URL of a server with sign-in.
        """
        url, document = self._connector.sign_in_url(server), self.settings.client_metadata_url
        options = sign_in_options(issuer, client_id, secret_env, document, redirect_port, dangerously_without_pkce)
        self._connector.key_variables |= {secret_env} if secret_env else set()
        broker = self._brokers.of(paste=paste)
        with Progress(f"sign-in at {url}") as shown:

            def tick() -> None:
                shown.clear() if broker.busy else shown.begin("asking the server how to sign in")
                broker.tick()

            status = sign_in(self._connector.http, self._connector.oauth.at(url), broker, options, keep=keep, tick=tick)
        return SignInTable([status])

    def whoami(self) -> SignInTable:
        """List the servers that this notebook is signed in to, with client, scopes and expiry."""
        return SignInTable(*self._connector.oauth.statuses())

    def logout(self, server: str | None = None) -> SignInTable:
        """Revoke and delete the tokens of a server, or of all; returns the sign-ins that remain.

        If you are not signed in there but the keyring has an API key of the server, this key is deleted.

        Raises:
            NotFoundError: you are not signed in there.
        """
        if not (server and self._connector.forget_key(server)):
            url = self._connector.running_mcp_url(server) if server else None
            sign_out(self._connector.http, self._connector.oauth, url)
        return self.whoami()

    def service(self, action: str = "status") -> str:
        """Show the `status` or the end of the `log` of the embedded service, `stop` it, or `check` the lab's files.

        `check` reads every page of the lab's databases. It lists damaged files with what to do about them, and files of
        jobs that the service's database does not list.
        """
        return "\n".join(check_lab(self.settings)) if action == "check" else self.embedded.report(action)

    def model(
        self, name: str | None = None, *, base: str | None = None, start: str | int | None = None
    ) -> SelectedModel:
        """Select a model, registering it if it is new; without a name, return the selected one.

        Args:
            name: PROJECT/NAME, or the UUID of an existing model. With a UUID nothing is registered, so it also works
                with services that cannot register models.
            base: the base model of a new model. For a model of the project `lab` it is by default the service's own.
            start: the checkpoint that a new model is made from: `lab/practice@2`, `lab/practice` for its newest, or a
                step of the selected model. It is copied with the state of its optimizer, and keeps its number. If the
                model was made from it before, the model is selected as it is now.

        Raises:
            InputError: the name is new, its project is not `lab`, and there is neither a base nor a start. It may be a
                model of another service.
            RefusedError: the model exists and was not made from `start`. NotFoundError: there is no such checkpoint.
            NotOfferedError: the service makes no models from checkpoints; nothing was registered.
        """
        if name is None and start is not None:
            message = "a model that is made from a checkpoint needs a name"
            raise InputError(message, hint=f"%model lab/second --from {start}")
        selected = self._models.select(name or self._models.selected, base, start)
        made_from = str(selected.made_from[0]) if selected.made_from else None
        if made_from or self._connector.name == EMBEDDED:  # other services may not know it
            self.store.origins.set_made_from(self._connector.name, selected.name, made_from)
        return selected

    @takes(SamplingOptions, TurnOptions, ChatOptions)
    def chat(self, name: str, prompt: Prompt = "", **given: Unpack[ChatOptions]) -> Collection:
        """Sample completions into a new generation of a collection.

        In the prompt, `{{x}}` is replaced by column x of the row, else by the variable x. The policy completes the
        conversation at each empty assistant message and at the end. Completions are stored as they arrive: an interrupt
        or an error loses none, and `resume` samples the rest.

        Args:
            name: the collection.
            prompt: the text of a cell (`user: ...`), messages, or a function that takes a row and returns a text or
                messages. If it is empty, the prompts of the collection are sampled again with new seeds, and settings
                that you do not give are those of the collection.

        Raises:
            InputError: an invalid prompt, variable or setting; nothing was sent.
            SamplingError: some requests failed; the other completions are stored.
            EpisodeError: no environment could begin.
            ServiceError, NotFoundError: the service's response.
            BudgetError: the budget is used up.
        """
        tools = self.tools.resolve(given.get("tools", ()))
        run = plan_chat(self.store, name, prompt, self._models.selected, given, tools, _read)
        return self._sample(run, given, register="model" not in given)

    @takes(SamplingOptions, TurnOptions, ChatOptions)
    def preview(
        self,
        name: str,
        prompt: Prompt = "",
        *,
        resume: bool = False,
        continue_chat: bool = False,
        top_up: float | None = None,
        **given: Unpack[ChatOptions],
    ) -> Preview:
        """Plan the requests that `chat` would send with the same arguments: number, cost, and the first one rendered.

        If the settings have a price for the model, the preview has the cost: an upper bound, and an estimate from the
        tokens of the collection's newest generation. With an environment, one instance is started to build the first
        request, and then closed.

        Args:
            name: the collection.
            prompt: as of `chat`.
            resume: plan what the call `resume` would send.
            continue_chat: plan what the call `continue_chat` would send.
            top_up: a factor: plan the first batch of the call `top_up` with it.

        Raises:
            InputError, NotFoundError: as the call itself.
        """
        tools = self.tools.resolve(given.get("tools", ()))
        if resume:
            return self._preview(plan_resume(self.store, name, tools, source_or_none(given.get("env"))))
        if top_up is not None:
            stored = self.store.find(name)
            check_top_up(stored, top_up)
            sizes = plan_first_sizes(self.store, stored, top_up)
            return self._preview(plan_resume(self.store, name, tools, source_or_none(given.get("env")), sizes))
        check_concurrency(given.get("concurrency", CONCURRENT))
        if continue_chat:
            return self._preview(plan_continuation(self.store, name, prompt, self._models.selected, given, tools))
        check_repeatable(given.get("over"))
        return self._preview(plan_chat(self.store, name, prompt, self._models.selected, given, tools, _read))

    def _preview(self, run: SamplingRun) -> Preview:
        price = self._terms.price(run.plan.pinned_model)
        first = self._connector.http.run(run.first_request_in_episode()) if run.source else None
        if price is None:
            return Preview(run, request=first)
        service, refused = self.settings.service, self._connector.refused
        trials = refused.most_of_trials(service, run.plan.pinned_model, run.plan.n) if service else Tokens()
        cost = cost_line(run, price, trials, self.store.collections(), self.store.spending.judged)
        return Preview(run, cost, first)

    @takes(ResumeOptions)
    def resume(self, name: str, *, timeout: float | None = None, **given: Unpack[ResumeOptions]) -> Collection:
        """Sample what an interrupted collection lacks, with its settings; no completion is sampled twice.

        An unfinished episode starts again from its seed: its environment gets the stored completions, and the episode
        goes on from there. An unfinished rollout of a program runs again from the start.

        Args:
            name: the collection.
            timeout: seconds for a rollout of a program. By default that of the collection.

        Raises:
            NotFoundError: no such collection.
            InputError: the collection was not sampled in this lab, or had other tools or another program.
            And as `chat` and `rollouts`.
        """
        summary, program = self.store.collection(name), given.get("program")
        by_program = program is not None or timeout is not None or summary.plan.get("program")
        if by_program and not given.get("tools") and "env" not in given:
            again = self._programs.find_to_resume(summary, program, self._connector.program_variables)
            run = plan_resume(self.store, summary.label, Tools(), program=again, timeout=timeout)
        else:
            tools = self.tools.resolve(given.get("tools", ()))
            run = plan_resume(self.store, name, tools, source_or_none(given.get("env")))
        return self._sample(run, given)

    @takes(ResumeOptions)
    def top_up(
        self,
        name: str,
        factor: float = FACTOR,
        reward: Functions | Judge | None = None,
        *,
        options: Options | None = None,
        say: Say = print,
        **given: Unpack[ResumeOptions],
    ) -> Collection:
        """Sample further completions for the groups of a scored collection that have nothing to learn.

        A group whose rewards are all equal has nothing to learn. It gets batches of `n` more completions, with the
        settings and the checkpoint of the collection, until it trains or has `factor` times `n` completions. `n` is the
        number of completions per prompt of the collection. The new completions become members of the group. Their seeds
        follow from the collection's seed, so the same top-up samples the same completions.

        An interrupt or an error loses nothing; the same call goes on, and so does `resume`.

        Args:
            name: the collection.
            factor: the most completions of a group, as a multiple of `n`.
            reward: reward functions or a judge for the new completions. By default the functions that last scored the
                collection in this notebook; otherwise the rewards of its environment or program. If there are none of
                these, one batch is sampled, and `say` is called with the cell that scores it.
            options: the training options of the job that follows. They decide whether a group trains.
            say: called with lines on what is sampled, its cost and the result.

        Raises:
            NotFoundError: no such collection.
            InputError: the collection was not sampled in this lab, continues another collection, has temperature 0, or
                has no rewards.
            And as `resume` and `reward`.
        """
        stored = self.store.find(name)
        check_top_up(stored, factor)
        bounds = {name: stored.plan.get("max_tokens")}
        training = settle(check_config(expand_options(options or {}, bounds).options))
        program, budget = given.get("program"), given.get("budget")
        shared = budget if isinstance(budget, Budget | None) else Budget(budget)
        tools, source = self.tools.resolve(given.get("tools", ())), source_or_none(given.get("env"))
        given["budget"] = shared
        check_environment(stored.label, stored.plan.get("env"), source)
        if not isinstance(reward, Judge | None):  # a wrong one is an error before anything is sampled
            make_calls(self.store, stored, ScoringRequest(reward, None, {}, self._reward_loop), lambda _: None)
        label, by_program = f"{stored.name}:{stored.generation}", stored.plan.get("program") or program is not None
        try:
            variables = self._connector.program_variables
            again = self._programs.find_to_resume(stored, program, variables) if by_program else None
        except InputError as error:
            if program is None:
                error.hint = f"%%rollout {stored.label} --top-up with the cell or --with the function that it is of"
            raise

        def sample_more(sizes: Mapping[int, int]) -> None:
            self._sample(plan_resume(self.store, label, tools, source, sizes, again), given)

        score_more = partial(self._score_more, stored, reward, shared, say)
        top_up_groups(self.store, stored, factor, training, sample_more, score_more, say)
        return self._collection(self.store.by_id(stored.id))

    @takes(SamplingOptions, TurnOptions)
    def continue_chat(self, name: str, prompt: Prompt, **given: Unpack[TurnOptions]) -> Collection:
        """Continue every conversation of a collection, into a new generation of it; the old generation stays.

        Settings that you do not give are taken from the collection. The tools must be those that it was sampled with.

        Args:
            name: the collection.
            prompt: the next messages, as of `chat`.

        Raises:
            As `chat`.
        """
        tools = self.tools.resolve(given.get("tools", ()))
        run = plan_continuation(self.store, name, prompt, self._models.selected, given, tools)
        return self._sample(run, given, register="model" not in given)

    @takes(SamplingOptions, RolloutOptions)
    def rollouts(
        self, name: str, solve: Solve | Program | Sequence[str], **given: Unpack[RolloutOptions]
    ) -> Collection:
        """Call a program for each row; its chats with the policy are the trajectories of a collection.

        An exception or a time-out ends only its own rollout, which keeps its completions and has no reward. Rollouts
        are stored as they end, and `resume` runs the rest of an interrupted call.

        Args:
            name: the collection.
            solve: a function `solve(row, client)`, plain or async, or a command. The client has `base_url`, `api_key`,
                `model` and `chat.completions.create` for this one rollout. The function returns a reward, a dict of
                components, or None; each call has a thread and an event loop of its own. Every request with the key of
                a rollout is recorded with tokens and logprobs, streamed or not: those of frameworks, subprocesses and
                concurrent sub-agents too. A command is a list of words. It gets the row as JSON on its standard input,
                and the address and the key in OPENAI_BASE_URL and OPENAI_API_KEY. Its last line of output is the reward
                as JSON.

        Raises:
            InputError: `solve` is neither such a function nor a command, or a setting is wrong.
            SamplingError: rollouts without any answer.
            And as `chat`.
        """
        program = self._programs.remember(name, program_of(solve, self._connector.program_variables))
        settings = {"model": self._models.selected, **given}
        run = plan_program(name, program, given.get("over"), settings, given.get("limit"), _read)
        return self._sample(run, given, register="model" not in given)

    @takes(SamplingOptions, SessionOptions)
    def capture(
        self,
        name: str,
        program: Solve | Sequence[str],
        *,
        results: str | None = None,
        resume: bool = False,
        **given: Unpack[SessionOptions],
    ) -> Collection:
        """Run an evaluation program once; each sample that it evaluates is a trajectory.

        The calls of the program name their sample in the header `X-Session-ID`. Samples that begin with the same
        messages are a group. Samples are stored while the program runs.

        Args:
            name: the collection.
            program: as `solve` of `rollouts`; it gets an empty row.
            results: files of JSON Lines with the rewards, as of `lab.files.join_results`.
            resume: run the program again after an earlier run was interrupted. The new samples are added to the
                collection, with its settings.

        Raises:
            As `rollouts` and `lab.files.join_results`. Samples are stored before the results are read.
        """
        solve, timeout = program_of(program, self._connector.program_variables), given.get("timeout", SESSIONS_TIMEOUT)
        if resume:
            if wrong := sorted(given.keys() - {"timeout", "budget"}):
                message = f"resume keeps the settings of the collection and cannot take {', '.join(wrong)}"
                raise InputError(message, hint=f"lab.capture({name!r}, PROGRAM, resume=True)")
            run = plan_sessions(self.store, name, solve, timeout)
        else:
            settings = {"model": self._models.selected, **given, "timeout": timeout}
            run = plan_program(name, solve, None, settings)
        register = "model" not in given and not resume
        collection = self._play(run, run_sessions, given.get("budget"), register=register)
        return self.files.join_results(collection.label, results) if results else collection

    @staticmethod
    def split(
        data: Any,
        held_out: float = 0.1,
        *,
        seed: int = 0,
        by: str | Sequence[str] = (),
        say: Say = print,
    ) -> DataSplit:
        """Split rows into the lists `train` and `held_out`, for `over`; collections record from which list a row is.

        Args:
            data: rows, as `over` of `chat`.
            held_out: the fraction of rows to hold out. A hash of a row's content and of `seed` decides where the row
                goes. So a row keeps its place if the order changes or rows are added. If you split one of the lists
                again, its rows are hashed anew, so that the fraction applies even with the same seed.
            seed: the seed of the hash.
            by: one or more columns. Rows with equal values in them stay together, because only these values are hashed.
                Case, white space and Unicode forms of texts make no difference.
            say: called with lines on the sizes of the parts, and on prompts of one part that are equal or nearly equal
                to prompts of the other.

        Raises:
            InputError: `held_out` is not between 0 and 1, a row lacks a column of `by`, or a list would be empty; or as
                `chat`.
        """
        return split_rows(data, held_out, seed=seed, by=by, say=say)

    @staticmethod
    def environment(env: Any, /, **options: Any) -> Source:
        """Make a source of environments, for `env` of `chat` and `loop`.

        Args:
            env: a class, a factory, a generator function, a source, or a name: `gymnasium:ID`, `openenv:URL`,
                `reasoning-gym:DATASET` or `textarena:ID`.
            options: with a name, options of its package, such as `is_slippery=False`. With a TRL environment factory,
                `reward_funcs`: they are called with its environments at the end of an episode.

        Raises:
            InputError: `env` is none of these, its package is not installed, or the package does not have that name. An
                instance is an error too, because it can serve only one rollout.
            UnreachableError: no server answers at the URL.
        """
        return source_of(env, **options)

    @property
    def sandbox(self) -> ModuleType:
        """Runs code that a policy wrote, apart from this process: `lab.sandbox.python(answer)`."""
        return sandbox

    def grader(self, grader: Mapping[str, Any] | str | PathLike[str], *, model: str | None = None) -> ForeignReward:
        """Make a reward function of an OpenAI grader, for `reward` and `top_up`.

        If a grader asks a model, its tokens count as tokens of the collection. In a multi grader, the score of each
        grader is a component with no weight in the reward; with a pass_threshold, `passed` is another.

        Args:
            grader: its JSON, as a mapping, a text or the path of a file.
            model: a model to ask instead of those that the JSON names. By default the session's service must have
                models with these names.

        Raises:
            InputError: it is not a grader, or of a kind that is not supported.
        """
        return grader_reward(grader, ModelAsker(self._connector, lambda: self.store, lambda: self._scoring), model)

    def collection(self, name: str) -> Collection:
        """Find the collection `name`, `name:N` or `name:latest`; `name/N` is one group, as a collection of one.

        A name without a generation means the generation that this session made last. If it made none, it means the one
        that was the newest when the session first used the name. This holds for every call. `name:latest` means the
        newest generation, even of another notebook; from then on the name alone means that generation too.

        Raises:
            NotFoundError: no such collection or group.
        """
        if isinstance(name, str) and "/" in name:
            return self._collection(*group_of(self.store, name))
        return self._collection(self.store.find(name))

    def collections(self, pattern: str | None = None, *, all: bool = False) -> "pd.DataFrame":
        """List the collections that match `pattern` (`cap*`), each generation with its counts, newest first.

        A cell shows one row per name, which opens to its generations; the DataFrame has a row per generation. If the
        settings file has prices, the list has the cost of sampling and judging. It leaves out the collections that
        comparisons sampled, and shows their number. To list them too, set `all`, or give a pattern that begins with
        `compare.`
        """
        store, spending = self.store, self.store.spending
        matching = match_collections(store.collections(), pattern)
        shown = [each for each in matching if all or is_asked_for(each.name, pattern)]
        paid = self._terms.price, spending.judged(), spending.sampled()
        return catalogue(shown, *paid, store.results.by_id(), hidden=len(matching) - len(shown), pattern=pattern)

    def delete(self, name: str, *, say: Say = print) -> None:
        """Soft-delete a collection, or one generation of it (`name:2`); NotFoundError when there is none."""
        say(f"deleted {', '.join(self.store.lifecycle.delete(name))}; undo: %collections --restore {name}")
        bare = name.partition(":")[0]
        if line := self.store.forget_deleted(bare):
            say(line)

    def restore(self, name: str, *, say: Say = print) -> None:
        """Restore the newest deletion of this name; NotFoundError when there is none."""
        restored = self.store.lifecycle.restore(name)
        self.store.keep_restored(restored)
        say(f"restored {', '.join(restored)}; undo: %collections --delete {name}")

    def rename(self, old: str, new: str, *, say: Say = print) -> None:
        """Rename a collection with all its generations.

        Raises:
            NotFoundError: there is no collection `old`. ConflictError: `new` is in use. InputError: not a valid name.
        """
        self.store.check_name(new)
        self.store.lifecycle.rename(old, new)
        self._names.rename(old, new)
        self._scorers.rename(old, new)
        self._programs.rename(old, new)
        say(f"renamed {old} to {new}; undo: %collections --rename {new} {old}")

    @takes(RewardOptions)
    def reward(
        self,
        name: str,
        function: Functions | None = None,
        weights: Weights = None,
        *,
        budget: Budget | float | None = None,
        say: Say = print,
        **given: Unpack[RewardOptions],
    ) -> Any:
        """Score every trajectory of a collection with functions; returns the collection.

        Outcomes are stored as they come. All of them are one change, which can be undone.

        Args:
            name: the collection.
            function: one function, a list of functions, or a dict of names and functions. Each function of a list or a
                dict is a component. The names of its parameters say what a function is called with: `trajectory`,
                `answer`, `reasoning`, `messages`, `row`, `prompt`, `completion`, `info`, or a column of the row. A
                function with the parameter `group` or `answers` is called once per group and returns a value for each
                member.
            weights: a weight for each component, 1 by default. The reward is the weighted sum of the components.
            budget: the most dollars that the models of graders may cost.
            say: called with lines on how many trajectories failed and have no reward, and how many rewards by hand were
                kept.

        Raises:
            NotFoundError: no such collection.
            InputError: a wrong weight, option or parameter, or not a function.
            BudgetError: the budget is used up; what was scored is stored.
            RewardError: all trajectories failed, and no reward was changed; or more than half failed, and the rest was
                not tried.
        """
        chosen = {key: value for key, value in given.items() if value is not False or key == "cache"}
        price, loop = self._terms.price, self._reward_loop
        collection, request = self.collection(name), ScoringRequest(function, weights, chosen, loop, price)
        meter = self._meter(JUDGING, budget)
        if budget is not None:
            meter.check_engine()
        self._scoring = meter
        try:
            with Progress(f"scoring {name}") as shown:
                return score_collection(self.store, collection, request, self._scorers, shown, say)
        finally:
            self._scoring = None
            meter.close(collection.stored)
            for line in meter.lines():
                say(line)

    @takes(JudgeOptions)
    def judge(
        self,
        name: str,
        rubric: str = "",
        *,
        model: str,
        budget: Budget | float | None = None,
        variables: Mapping[str, Any] | None = None,
        say: Say = print,
        **given: Unpack[JudgeOptions],
    ) -> Collection:
        """Have a model score the completions of each group, side by side, from 0 to 1; all groups or none.

        The reward of a completion is the mean of its scores in several judgements; the component `disagreement` is the
        distance between these scores. The explanation of each score is in `Collection.reward_history`. The judge's
        tokens count as the collection's, even those of unusable responses.

        Each judgement is stored as it comes, with its cost. Rewards are given when all judgements are there. The same
        judge is not asked twice about the same completions. So after an interrupt the same call goes on where it
        stopped, and `say` is called with how much was judged before.

        Args:
            name: the collection.
            rubric: the criteria; `{{x}}` is replaced by column x of the row, else by the variable x. By default a
                general rubric.
            model: the judge.
            budget: the most dollars that this call may cost; it needs `max_tokens`.
            variables: values for `{{x}}` where a row has no column x.
            say: called with a summary of the disagreement, and the cost.

        Raises:
            NotFoundError: no such collection or model.
            InputError: an invalid rubric or number of samples.
            RewardError: no scores for a group after a retry.
            ServiceError: the service's response.
            BudgetError: the budget is used up; no reward was changed, and the same call goes on.
        """
        self.store.check_writable()
        overwrite, cache = given.get("overwrite", False), given.get("cache", True)
        own: dict[str, Any] = {key: value for key, value in given.items() if key not in {"overwrite", "cache"}}
        collection, judge = self.collection(name), Judge(model, rubric, **own)
        meter = self._meter(JUDGING, budget)
        disagreement = ""
        try:
            with Progress(f"judging {name}") as shown:
                try:
                    scores, disagreement = judge_collection(
                        collection, name, judge, variables or {}, overwrite, self.store, self._connector, shown, meter,
                        cache=cache, say=say,
                    )  # fmt: skip
                finally:
                    shown.keep("\n".join(self._connector.refused.notes()))
        finally:
            for line in filter(None, [disagreement, *meter.lines()]):
                say(line)
        store_scores(self.store, collection.label, scores, judge, overwrite=overwrite, say=say)
        return collection

    def rewards(self, names: str | Sequence[str]) -> RewardsView:
        """Show the rewards of collections as one table to sort, filter and edit; `to_frame()` makes a DataFrame.

        names: a name or several (`capitals`, `capitals:1`), a pattern (`cap*`), or one group (`capitals/0`).

        Raises:
            NotFoundError: no such collection or group, or none that matches.
        """
        return RewardsView(self.store, *rows_to_show(self.store, names))

    @takes(JobOptions)
    def train(
        self,
        names: Names,
        options: Options | None = None,
        *,
        wait: bool = True,
        say: Say = print,
        **given: Unpack[JobOptions],
    ) -> Job:
        """Train the selected model on scored collections: check, submit, and follow until the job has ended.

        Args:
            names: collections, or patterns such as `cap*` for the newest generation of each match. With `sft`,
                fine-tuning files too.
            options: training options, which `rolloutlab.objective.option_docs` lists. With `sft`, `learning_rate` and
                `batch_size`.
            wait: follow the job until it has ended; an interrupt leaves it running.
            say: called with each line of the report.

        Raises:
            InputError: invalid options, or an unusable loss.
            NotFoundError: no such collection.
            NothingTrainsError: no trajectory would train.
            BudgetError: the job costs more than is left.
            JobFailedError: the job failed.
            BrokenOffError: the response was lost; `jobs` lists the job.
        """
        sft, where, loss = given.get("sft", False), given.get("where"), given.get("loss")
        self.store.check_writable()
        self._models.check_trains()
        options = add_algorithm(options, given.get("algorithm"))
        meter = self._meter(TRAINING, given.get("budget"))
        meter.check_training(self._models.selected)
        if check_sft(sft=sft, where=where):
            if loss:
                raise InputError("fine-tuning has its own loss, cross-entropy", hint="leave out loss or sft")
            wanted = plan_fine_tuning(
                self.store, lambda: self._search.index, names, options or {}, where, self._models.selected
            )
            return self._submit_fine_tuning(wanted, meter, wait=wait, say=say)
        collections = select(self.store, names)
        with _reading(self.store, collections, self._models.selected) as (shown, counted):
            submission = prepare(collections, options or {}, self._models.selected, self._models.text_only, counted)
        submission = submission.with_loss(publish_loss(loss, self._connector.settings)) if loss else submission
        model, address = self._models.register_for_training(self._models.selected), self._connector.address()
        with _reading(self.store, collections, self._models.selected) as (shown, _):
            shown.begin(_CHECKING, submission.check.trajectories * _CHECK_SECONDS)
            submission = submission.with_start(self._models.start()).with_engine(
                self._models.engine(), self._models.default_rate()
            )
            submission = add_prediction(submission, self._connector, lambda: shown.begin(_PREDICTING))
        for line in [*submission.report(), *self._models.take_lost_notes(self._models.selected)]:
            say(line)
        sent = submission.check.trajectories - len(submission.check.unscored)
        tokens = submission.check.trainable_tokens
        with Progress(f"training {self._models.selected}") as shown, meter.job(self._models.selected, tokens, say):
            counted = partial(shown.update, total=sent, note="trajectories sent, which the service reads")
            job_id = submit(submission, self.store.jobs, self._connector, address, str(model.id), counted)
        job = self.job(job_id)
        return job.wait() if wait else job

    def _submit_fine_tuning(self, wanted: FineTuning, meter: Meter, *, wait: bool, say: Say) -> Job:
        """Upload the data, report what trains, submit."""
        model, address, http = (
            self._models.register_for_training(self._models.selected),
            self._connector.address(),
            self._connector.http,
        )
        check_honoured(wanted.config, self._connector, address)
        uploaded = FineTuningCheck(wanted, http.run(upload(http, address, wanted)), self._connector.engine(address))
        uploaded.check()
        for line in [*uploaded.report(), *self._models.take_lost_notes(self._models.selected)]:
            say(line)
        jobs, file = self.store.jobs, uploaded.file
        with meter.job(self._models.selected, file.tokens, say):
            job_id = submit_fine_tuning(wanted, file, jobs, self._connector, address, str(model.id))
        job = self.job(job_id)
        return job.wait() if wait else job

    def check(
        self,
        names: Names,
        options: Options | None = None,
        *,
        sft: bool = False,
        where: Any = None,
        algorithm: str | None = None,
    ) -> DryRun | FineTuningCheck:
        """Report before `train` what would train, its cost, and why the rest would not. Starts no job.

        It starts no service, except with `sft=True`, because that report needs the policy's tokenizer.

        Args:
            names: as of `train`.
            options: as of `train`.
            sft: as of `train`.
            where: as of `train`.
            algorithm: as of `train`.

        Raises:
            InputError: invalid options.
            NotFoundError: no such collection.
        """
        options, price = add_algorithm(options, algorithm), self._terms.price(self._models.selected)
        if check_sft(sft=sft, where=where):
            wanted = plan_fine_tuning(
                self.store, lambda: self._search.index, names, options or {}, where, self._models.selected
            )
            self._models.register_for_training(self._models.selected)
            return check_fine_tuning(wanted, self._connector, self._connector.address(), price)
        collections = select(self.store, names)
        with _reading(self.store, collections, self._models.selected) as (shown, counted):
            submission = gather_for(self._models, collections, options or {}, counted)
            submission = add_prediction(submission, self._connector, lambda: shown.begin(_PREDICTING))
            return DryRun(submission, price, self._jobs.last(self._models.selected))

    def train_form(
        self,
        names: str | Sequence[str],
        options: Options | None = None,
        *,
        algorithm: str | None = None,
        budget: Budget | float | None = None,
    ) -> TrainingForm:
        """Make a form for the training options of a job on these collections, with the pre-flight report.

        The form begins with the values of `options`; an algorithm fills in the options that it stands for. `budget` is
        the most that its job may cost, in dollars.

        Patterns are matched once, when the form is made. Later the form keeps these collections, even if they are
        renamed or newer ones match.

        Raises:
            InputError: an option is unknown. NotFoundError: no such collection.
        """
        collections = select(self.store, names)
        shared = budget if isinstance(budget, Budget | None) else Budget(budget)
        form = TrainingForm(
            collections,
            add_algorithm(options, algorithm) or {},
            lambda counted: gather_for(self._models, collections, {}, counted),
            lambda: (self.store.changes(), self._models.selected),
            partial(self._submit_quietly, collections, shared),
            self.store.rewards.listen,
            lambda: self._terms.price(self._models.selected),
            lambda: self._jobs.last(self._models.selected),
            None if isinstance(budget, Budget) else budget,
        )
        with _reading(self.store, collections, self._models.selected) as (_, counted):
            form.read(counted)
        return form

    def _submit_quietly(self, collections: Sequence[Collection], budget: Budget | None, options: Options) -> Job:
        """Submit a job, without waiting and without a line."""
        paid: JobOptions = {} if budget is None else {"budget": budget}
        return self.train([each.name for each in collections], options, wait=False, say=lambda _: None, **paid)

    def job(self, job_id: str | None = None) -> Job:
        """Find a job of this lab, submitted from any kernel; by default the newest.

        job_id: its id or at least the first 4 characters of it; or the checkpoint that the job made, such as
        `lab/sorter@3`, or `@3` for the selected model.

        Raises:
            NotFoundError: no job matches, several match, or the job's service is not in the settings.
        """
        return self._jobs.job(job_id, self._models.selected)

    def jobs(self, shown: int = 20) -> "pd.DataFrame":
        """List every job of this lab, newest first, with its status, the step it made and rewards before and after it.

        The status of unfinished jobs is updated if their service runs; no service is started. shown: how many rows a
        cell shows.
        """
        with Progress("jobs") as line:
            return self._jobs.table(shown, lambda: line.begin("asking the service how they go"))

    @takes(SamplingOptions, TurnOptions, ChatOptions, LoopOptions)
    def loop(
        self,
        name: str,
        prompt: Prompt = "",
        reward: Functions | Judge | None = None,
        *,
        solve: Solve | Program | Sequence[str] | None = None,
        jobs: int = 10,
        seeds: int | None = None,
        options: Options | Schedule | None = None,
        say: Say = print,
        **given: Unpack[LoopOptions],
    ) -> "Loop | Loops":
        """Sample, score and train for `jobs` rounds; round N is the generation `name:N`. The same call goes on later.

        An interrupt, an error or a killed kernel loses nothing that was sampled, scored or trained. The same call goes
        on in the round where it stopped, which is then one of its `jobs`. `jobs=0` only shows the rounds so far.
        `seed` is the seed of the first round; the seeds of later rounds follow from it. `budget` limits sampling,
        judging and training together. `over` can be a function that takes the number of a round and returns its rows.
        With a source of environments, the default is new rows of this source in each round.

        Args:
            name: the collection.
            prompt: as of `chat`.
            reward: functions, or a `Judge`. The scores of a judge compare only completions of one group, so there is no
                `best` and no held-out score. With `env` or `solve` it may be left out: these give rewards themselves.
            solve: a program, as of `rollouts`, that samples instead of a prompt.
            jobs: how many rounds to make now. Finished rounds do not count, and the one that was interrupted does. With
                `seeds`, how many rounds each loop has in the end.
            seeds: make so many loops, one after another, and return all: each with other sampling seeds, on a new model
                that begins where the selected one is, as `sweep` does. Their collections are `name.seed0`,
                `name.seed1` and so on; if `lab/practice` is selected, their models are `lab/practice.name.seed0` and
                so on.
            options: as of `train`, including `algorithm`; or a function that takes the number of a round and returns
                such options.
            say: called with a line per round if no chart can be shown.

        Raises:
            InputError: an invalid argument; nothing was sampled.
            RewardError, ServiceError, JobFailedError, BudgetError: as `chat`, `rollouts`, `reward` and `train` do.
        """
        plan = self._plan_loop(name, prompt, reward, solve, jobs, options, given, seeded=seeds is not None)
        if seeds is not None:
            return self._run_loops(plan, {}, seeds, say, given)
        counts: Any = {"jobs": jobs, "every": plan.every, "patience": plan.patience}
        with self._live(say, given.get("report_to", ())) as live:
            return run_loop(plan.steps, self.store, plan.over, live, self._models.default_rate(), **counts)

    @takes(SamplingOptions, TurnOptions, ChatOptions, LoopOptions)
    def sweep(
        self,
        settings: Mapping[str, Sequence[Any]],
        name: str,
        prompt: Prompt = "",
        reward: Functions | Judge | None = None,
        *,
        solve: Solve | Program | Sequence[str] | None = None,
        jobs: int = 10,
        seeds: int = 1,
        options: Options | Schedule | None = None,
        say: Say = print,
        **given: Unpack[LoopOptions],
    ) -> Loops:
        """Run a loop for each combination of settings, one after another, and compare their best checkpoints.

        Each loop has a new model that begins where the selected model is, and a collection of its own. With
        `{"learning_rate": [1e-3, 2e-3]}` these are `lab/practice.NAME.learning_rate-0.001.seed0` and
        `NAME.learning_rate-0.001.seed0`. All loops measure the held-out rows with the same seeds and with the settings
        of the call, without those of the grid. So their means compare.

        `jobs` is the number of rounds that each loop has in the end. After an interrupt or a kill the same call makes
        only what is missing, and with larger `jobs` or `seeds` it goes on. The selected model stays selected.

        Args:
            settings: lists of values: options of a job, or `temperature`, `top_p`, `max_tokens`, `max_turns`, `stop`,
                `n` or `top_up`.
            name: the name of the sweep, with which the collections begin.
            prompt: as of `loop`.
            reward: as of `loop`.
            solve: as of `loop`.
            jobs: how many rounds each loop has in the end; 0 only shows the loops.
            seeds: how many loops each combination has. Their seeds follow from `seed`, by default 0.
            options: as of `loop`, for all loops.
            say: called with a line per loop if no table can be shown.

        Raises:
            InputError: an invalid argument; nothing was sampled. NotOfferedError: the selected model has been trained,
                and the service makes no models from checkpoints.
            And as `loop`.
        """
        check_grid(settings)
        plan = self._plan_loop(name, prompt, reward, solve, jobs, options, given, seeded=True)
        return self._run_loops(plan, settings, seeds, say, given)

    def _plan_loop(
        self,
        name: str,
        prompt: Prompt,
        reward: Functions | Judge | None,
        solve: Solve | Program | Sequence[str] | None,
        jobs: int,
        options: Options | Schedule | None,
        given: LoopOptions,
        *,
        seeded: bool,
    ) -> LoopSettings:
        """Plan a loop as it is called. seeded: its seed is 0 by default, and not a random one."""
        from rolloutlab.runs.records import find_run_changes

        budget, seed, over = given.get("budget"), given.get("seed", 0 if seeded else None), given.get("over")
        shared = budget if isinstance(budget, Budget | None) else Budget(budget)
        self._models.check_trains()
        self._meter(TRAINING, shared).check_training(self._models.selected)
        source = source_or_none(given.get("env"))
        program = None if solve is None else program_of(solve, self._connector.program_variables)
        draws_rows = over is None and source is not None and seed is None
        if over is None and source:
            over = partial(rows_of_round, source, given.get("limit"), new_seed() if seed is None else seed)
        sampling = {key: value for key, value in given.items() if key not in OF_ROUNDS}
        steps = LoopSteps(
            self, name, prompt, reward, given.get("n", 8), seed, options, given.get("held_out"), sampling, shared,
            program, given.get("top_up"), self._connector.name, draws_rows,
            find_run_changes=partial(find_run_changes, self.store, self._connector.name),
        )  # fmt: skip
        return LoopSettings(steps, over, jobs, given.get("every", 5), given.get("patience", 3))

    def _run_loops(
        self, plan: LoopSettings, grid: Mapping[str, Sequence[Any]], seeds: int, say: Say, given: LoopOptions
    ) -> Loops:
        meter = self._meter(TRAINING, plan.steps.budget)
        rate = self._models.default_rate()
        with self._live(say, given.get("report_to", ())) as live:
            return run_loops(plan, self.store, self._models, live, rate, grid, seeds, meter.check_training)

    @contextmanager
    def _live(self, say: Say, report_to: Sequence[str]) -> Iterator[Live]:
        """Make what shows a loop while it goes on. With trackers, it also sends the run to them."""
        if not report_to:
            yield Live(say)
            return
        from rolloutlab.runs.sending import LiveReporting
        from rolloutlab.runs.tracker import open_trackers

        trackers = open_trackers(report_to, self.settings.home)
        with closing(LiveReporting(say, lambda: self.store, self._connector.name, trackers)) as live:
            yield live

    @overload
    def runs(self) -> "RunList": ...
    @overload
    def runs(self, name: str, /, *names: str) -> "RunView": ...
    def runs(self, *names: str) -> "RunList | RunView":
        """List the runs of this lab, the one that was trained last first; with names, show these over common steps.

        A run is what happened to a model: for each checkpoint what it sampled, how that was scored, and the job that
        trained on it, whether a cell, a loop or another kernel made them. A new run of the model begins where the
        reward, the prompt or the held-out rows changed, because means before and after do not compare.

        Args:
            names: runs, models, patterns such as `lab/sweep*`, or a collection that one run alone has trained on.

        Raises:
            NotFoundError: no run has such a name, or several could be meant.
            InputError: a name is not a text.
        """
        with Progress("runs") as line:
            self._jobs.refresh(lambda: line.begin("asking the service how jobs go"))
        from rolloutlab.runs.catalogue import load_runs  # and pandas, when its table is made
        from rolloutlab.runs.view import RunView

        return RunView(lambda: self.store, names, self.settings.home) if names else load_runs(self.store)

    def report(self, run: str | Sequence[str], path: str | PathLike[str], *, overwrite: bool = False) -> Path:
        """Write the report of a run, or of several beside each other, as one HTML file; returns its path.

        It has the curves, texts of the first, the best and the last step, every number, the options, the names of
        environments and of the base, the prompts, the source text of the rewards, and versions. The base is only known
        of models of the embedded service. The file needs no network and no script, and can be printed.

        Args:
            run: as the names of `runs`.
            path: the file, such as `run.html`.
            overwrite: replace the file if there is one.

        Raises:
            NotFoundError: as `runs`. InputError: no run is named, or the file exists or cannot be written.
        """
        from rolloutlab.runs.report import write_report
        from rolloutlab.runs.view import RunView
        from rolloutlab.training.default_model import registered_bases

        self._jobs.refresh()
        names = run if isinstance(run, Sequence) and not isinstance(run, str) else [run]
        if not names or not all(isinstance(name, str) for name in names):
            newest = next((each.name for each in self.runs()), "NAME")
            hint = f"lab.report({newest!r}, 'run.html')"
            raise InputError(f"{run!r} is neither the name of a run nor several", hint=hint)
        view = RunView(lambda: self.store, names, self.settings.home)
        with Progress(f"writing the report of {view.runs[0].name}"):
            return write_report(self.store, view, path, registered_bases(self.settings), overwrite=overwrite)

    @takes(CompareOptions)
    def compare(
        self,
        name: str | None = None,
        reward: Functions | None = None,
        *,
        checkpoints: "Sequence[str | int | Run | Loop]" = (),
        best: bool = False,
        before: str | int | None = None,
        after: str | int | None = None,
        over: Any = None,
        **given: Unpack[CompareOptions],
    ) -> "Comparison | Comparisons":
        """Sample the prompts of a collection again, with the same seeds, from several checkpoints, and score all.

        The samples stay in the lab, in collections such as `compare.NAME.lab.sorter.step3`. Lists and searches leave
        these collections out. Samples of an earlier comparison with the same prompts, seeds and settings are reused. If
        a program of this notebook sampled the collection, the program runs again with each checkpoint; its rewards
        count unless you give reward functions.

        Args:
            name: the collection whose prompts are used. It can be left out if you give `over`: then it is the
                collection that the models were trained on last.
            reward: reward functions; by default those that last scored the collection in this notebook, or the rewards
                of its environment.
            checkpoints: two or more, such as `lab/sorter@3`, `lab/sorter` for its newest, or steps of `model`; a run or
                a loop stands for its best checkpoint. The others are compared with the first, the base. By default
                `before` and `after`.
            best: `checkpoints` are names of runs, as `runs` takes them, which stand for their best checkpoints.
            before: the base, if you give no `checkpoints`. None is the oldest checkpoint, which is 0 unless the model
                was made from a checkpoint.
            after: the checkpoint that is compared with `before`; None is the newest.
            over: other rows for the collection's prompt, such as held-out ones. There is no verdict if a job of this
                lab trained one of the two checkpoints, and not the other, on any of the prompts.

        Raises:
            NotFoundError: no such collection or checkpoint.
            InputError: no reward function, or a reward outside the bounds.
            And as `chat` and `reward`.
        """
        from rolloutlab.trajectories.comparison import Side, compare_sides  # and numpy

        given_runs = self.runs(*map(str, checkpoints)).runs if best and checkpoints else checkpoints
        wanted = [best_checkpoint(each) for each in given_runs]
        find = partial(find_checkpoints, self._models, wanted, before, after, given.get("model"), name or "NAME")
        name = find_collection(self._jobs, find(), over) if name is None else name
        summary = self.store.collection(name)
        source, program = source_or_none(given.get("env")), self._programs.of(summary)
        check_environment(name, summary.plan.get("env"), source)
        functions, weights = self._scorers.scorer_for(summary, reward, name, gives_reward=bool(source or program))
        chosen = find()
        sampler = self._side_sampler(summary, over, source, program, given)
        sides = []
        for checkpoint in chosen:
            sampled, reused = sampler.sample(checkpoint, scored=functions is not None)
            scored = self.reward(sampled.label, functions, weights) if functions else sampled
            sides.append(Side(str(checkpoint), scored, reused))
        with Progress(f"comparing {name}") as shown:
            completions = sum(len(side.collection) for side in sides)
            shown.begin("comparing the rewards of each prompt", completions * _SUM_SECONDS)
            base_note = note_on_base(wanted, before, chosen[0])
            trained = self._jobs.trained_between(chosen[0], chosen[1:])
            trained_apart = [(prompts, [*base_note, *notes]) for prompts, notes in trained]
            return compare_sides(
                name, sides, trained_apart, weights, anytime=given.get("anytime", False), bounds=given.get("bounds")
            )

    def _side_sampler(
        self,
        summary: StoredCollection,
        over: Any,
        source: Source | None,
        program: Program | None,
        given: CompareOptions,
    ) -> SideSampler:
        """Make what samples the sides of a comparison. Rows are read once, for all sides."""
        rows = None if over is None else _read(over)
        play = partial(self._play, play=partial(sample, concurrency=given.get("concurrency", CONCURRENT)))
        return SideSampler(
            self.store, summary, play, rows, given.get("variables"), given.get("n"), given.get("tools", ()),
            given.get("prompt"), source, program,
        )  # fmt: skip

    @takes(SearchOptions)
    def search(
        self,
        query: str | Mapping[str, Any] | Search | None = None,
        *,
        into: str | None = None,
        all: bool = False,
        **given: Unpack[SearchOptions],
    ) -> "SearchResult":
        """Search all trajectories ever sampled, best match first; a collection's name means all its generations.

        Texts are compared by the embedding model if there is one, else by their words; the result says which.

        Args:
            query: a text; or a complete search, as a dictionary of docs/search_format.md or a `Search`.
            into: a collection to copy the hits to, to score and train on.
            all: also search the collections that comparisons sampled. By default these are left out unless a condition
                names them.

        Raises:
            InputError: an invalid search; the message gives the place.
            LabError: the index is damaged.
        """
        with Progress("search") as shown:
            from rolloutlab.trajectories.search_view import SearchResult  # and numpy

            shown.begin("opening the index")
            place, answer, notes = self._search.search(shown.step, query, everything=all, **given)
        notes += self.store.made_elsewhere([hit.id for hit in answer.outcome.hits])
        if into is not None:
            notes.append(f"copied to {copy_trajectories(self.store, [hit.id for hit in answer.outcome.hits], into)}")
        return SearchResult(
            answer.search, answer.outcome, notes, place.documents, partial(place.breakdown, answer.executed)
        )

    def branch(self, hit: Any, turn: int | None = None) -> Branch:
        """Take the messages of a conversation before completion `turn` (counted from 0), for `chat`.

        hit: a hit of a search, or a trajectory's name, such as `letters:1/0/3`. turn: how many completions to keep. By
        default all but the last, so that the last is sampled again.

        Raises:
            NotFoundError: no such trajectory. InputError: it has no such turn.
        """
        return take_branch(self.store, getattr(hit, "id", hit), turn)

    def _read_lab(self) -> LabRecord:
        """Return the jobs, collections and results of comparisons that the lab has stored."""
        return LabRecord(self.store.jobs.newest_first(), self.store.collections(), self.store.results.by_id())

    def _collection(self, stored: StoredCollection, position: int | None = None) -> Collection:
        """Make the view of a stored generation or one group; it asks the service for logprobs when it shows them."""
        return Collection(self.store, stored, position, partial(ask_service, self._connector))

    @property
    def _terms(self) -> Terms:
        return terms_of(self.settings, self._connector.name, self._models.engine_name)

    def _meter(self, purpose: str, budget: Budget | float | None) -> Meter:
        return Meter(self._terms, lambda: self.store.spending, purpose, budget)

    def _score_more(
        self, stored: StoredCollection, reward: Functions | Judge | None, budget: Budget | None, say: Say
    ) -> str:
        """Score the trajectories without a reward, by `reward` or as the collection was scored last.

        Returns:
            The cell to type if nothing here can score them, else an empty text.
        """
        label, last = f"{stored.name}:{stored.generation}", self.store.scorings.last(stored)
        paid: dict[str, Any] = {} if budget is None else {"budget": budget}
        if isinstance(reward, Judge):
            self.judge(label, **vars(reward), say=say, **paid)
            return ""
        by_functions = last is not None and last.source == "function"
        if reward is None and not by_functions:
            if last is None and (stored.plan.get("env") or stored.plan.get("program")):
                return ""
            return f"%%reward {stored.label} --judge {last.names[0]}" if last else f"%rewards {stored.label}"
        if last and by_functions:
            try:
                self._scorers.to_resume(last.change, reward, stored.label)
            except InputError as error:
                return str(error.hint)
        self.reward(label, reward, resume=by_functions, say=say, **paid)
        return ""

    def _sample(
        self, run: SamplingRun, given: TurnOptions | RolloutOptions | ResumeOptions, *, register: bool = False
    ) -> Collection:
        """Sample the rollouts of a plan, with the concurrency and within the budget of `given`."""
        play = partial(sample, concurrency=given.get("concurrency", CONCURRENT))
        return self._play(run, play, given.get("budget"), register=register)

    def _play(
        self,
        run: SamplingRun,
        play: Callable[..., StoredCollection],
        budget: Budget | float | None = None,
        *,
        register: bool = False,
    ) -> Collection:
        """Make the completions of a run with `play`, and return its collection.

        register: the model is the selected one; register it first if the service does not have it yet.
        """
        meter: Meter = self._meter(SAMPLING, budget)
        prepare = partial(self._models.ensure_registered, run.plan.model) if register else lambda _: None
        run = replace(run, plan=self._models.pin(run.plan)) if register else run
        with Progress(f"sampling {run.name}") as shown:
            tick = self._brokers.tick
            notes: Sequence[str] = ()
            try:
                stored = play(run, self.store, self._connector, shown, tick=tick, meter=meter, prepare=prepare)
                notes = [*run.notes, *self._connector.policy_notes(), *self._models.take_lost_notes(run.plan.model)]
            finally:
                shown.keep("\n".join([*notes, *self._connector.refused.notes(), *meter.lines()]))
        return self._collection(stored)


@contextmanager
def _reading(
    lab: Lab, collections: Sequence[Collection], model: str
) -> Iterator[tuple[Progress, Callable[[int], None]]]:
    """Show the progress of reading and checking before a job of `model` is sent.

    Yields:
        The display, and a function to call with the number of trajectories read so far.
    """
    total = sum(lab.collection(each.label).trajectories for each in collections)
    with Progress(f"training {model}") as shown:

        def counted(done: int) -> None:
            if not done:
                shown.begin(f"reading {total:,} trajectories", total * _READ_SECONDS)
            elif done < total:
                shown.update(done, total, "trajectories read")
            else:
                shown.begin(_CHECKING, total * _CHECK_SECONDS)

        yield shown, counted


def _read(over: Any, limit: int | None = None) -> list[Row]:
    """Read rows, and show after 0.3 seconds how many have been read."""
    with Progress("reading rows") as shown:
        return rows_of(over, limit, shown.count)


def lab() -> Session:
    """Find the session of this notebook once `%load_ext rolloutlab` has run; elsewhere, a new one."""
    from IPython import get_ipython

    shell = get_ipython()
    magics = shell.magics_manager.registry.get("ChatMagics") if shell else None
    return magics.session if magics else Session()

"""Tests for the author of a plug-in: subclass one in a test file, name what it tests, and run pytest.

    from rolloutlab.testing import EnvironmentTests

    class TestGuess(EnvironmentTests):
        env = "guess:100"
        answers = ["50", "75"]

Each class tests what the lab relies on in one group of `rolloutlab.plugins`; docs/plugins.md has an example of each.
"""

import asyncio
import json
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rolloutlab import plugins
from rolloutlab.api.http.client import HttpClient
from rolloutlab.api.wire.chat import Choice, UserMessage
from rolloutlab.environments.episode import Episode
from rolloutlab.environments.protocol import Source
from rolloutlab.environments.source import source_of
from rolloutlab.errors import InputError
from rolloutlab.runs.table import RunTable
from rolloutlab.runs.tracker import open_trackers
from rolloutlab.scoring.calls import RewardCell
from rolloutlab.scoring.foreign import call_of
from rolloutlab.search.query import Limit, Search, Select
from rolloutlab.search.where import Among
from rolloutlab.session import Session
from rolloutlab.settings import ModelSettings, Settings
from rolloutlab.store.models import Arrival, NewGroup, StoredTrajectory
from rolloutlab.trajectories.files.reader import FileWriter


class _OwnGame:
    """An environment as a notebook has it."""

    def __init__(self, row: Any) -> None: ...

    def reset(self, seed: int) -> str:
        return f"game {seed}"

    def step(self, answer: str) -> tuple[str, float, bool]:
        return answer, 0.0, True


class EnvironmentTests:
    """An environment, played as a rollout plays it.

    Attributes:
        env: The value of `--env`, or a class or factory.
        options: Keyword options of the package, if `env` is a name.
        row: The row that the environment gets.
        seed: The seed that `reset` gets.
        answers: The answers of the policy, one per turn until the episode ends.
    """

    env: Any
    options: Mapping[str, Any] = {}
    row: Mapping[str, Any] = {}
    seed: int = 7
    answers: Sequence[str] = ("yes",)

    def source(self) -> Source:
        return source_of(self.env, **self.options)

    def first_row(self) -> Mapping[str, Any]:
        """The row that is played: the given one, else the first that the source brings."""
        return self.row or next(iter(self.source().rows(1, self.seed) or ()), {})

    def test_names_are_offered_to_tab_completion(self) -> None:
        prefix = str(self.env).partition(":")[0]
        adapter = plugins.load(plugins.ENVIRONMENTS, prefix) if isinstance(self.env, str) else None
        listed: list[Any] = list(getattr(adapter, "names", list)())
        assert all(isinstance(name, str) for name in listed), "names() returns texts, without the prefix"

    def test_classes_of_a_notebook_are_left_alone(self) -> None:
        """`recognise` takes objects of its own package alone. Else a cell plays another environment than it names."""
        for name in plugins.names(plugins.ENVIRONMENTS):
            recognise = getattr(plugins.load(plugins.ENVIRONMENTS, name), "recognise", None)
            assert recognise is None or recognise(_OwnGame, {}) is None, f"the plug-in {name} takes any class"

    def test_two_sources_of_the_same_arguments_have_one_name(self) -> None:
        """A collection stores the name, by which `--resume` finds that the environment is the same."""
        assert self.source().name == self.source().name

    def test_rows_are_json_and_as_many_as_are_asked_for(self) -> None:
        """They are stored, and a group is sampled for each."""
        rows = self.source().rows(2, self.seed)
        assert rows is None or (len(rows) <= 2 and json.loads(json.dumps(list(rows), allow_nan=False)) == list(rows))

    def test_an_episode_gives_observations_and_finite_rewards(self) -> None:
        """Whatever the answers: an observation is a text or messages, a reward is a finite number."""
        _, rewards = asyncio.run(self._play(self.seed))
        assert all(map(math.isfinite, rewards))

    def test_rollouts_of_one_group_begin_alike(self) -> None:
        """They have the same seed; GRPO compares them with each other."""
        first, _ = asyncio.run(self._play(self.seed))
        second, _ = asyncio.run(self._play(self.seed))
        assert first == second

    def test_episodes_at_the_same_time_do_not_disturb_each_other(self) -> None:
        """Rollouts run concurrently, each with an instance in a thread of its own."""

        async def several() -> list[tuple[list[Any], list[float]]]:
            return await asyncio.gather(*(self._play(self.seed) for _ in range(4)))

        alone = asyncio.run(self._play(self.seed))
        assert all(each == alone for each in asyncio.run(several()))

    async def _play(self, seed: int) -> tuple[list[Any], list[float]]:
        """The first messages, and the rewards of the turns and of the episode, which is closed whatever happens."""
        episode = Episode(self.source(), self.first_row(), seed)
        rewards: list[float] = []
        try:
            first = [message.to_wire() for message in await episode.begin()]
            for answer in self.answers if episode.takes_answers else ():
                turn = await episode.step(answer)
                rewards.append(turn.reward)
                if turn.done:
                    break
            final = await episode.final_reward((first, []))
            return first, [*rewards, *([] if final is None else [final])]
        finally:
            await episode.close()


class RewardTests:
    """Reward functions of a library, and the rewards that they give in the lab.

    Attributes:
        plugin: The name of the entry point.
        functions: Reward functions, each with the rewards that it gives to `answers`.
        answers: The answers of one group.
        row: The row of that group.
    """

    plugin: str
    functions: Sequence[tuple[Any, Sequence[float]]]
    answers: Sequence[str] = ("Paris", "Lyon")
    row: Mapping[str, Any] = {}

    def test_its_functions_are_recognised_and_give_their_rewards(self, tmp_path: Path) -> None:
        assert self.functions, "functions = [(function, [a reward for each of answers])]"
        columns = list(self.row)
        for function, rewards in self.functions:
            known = plugins.load(plugins.REWARDS, self.plugin).recognise(function, columns)
            assert known is not None, f"recognise({function.__name__}, {columns}) returned None"
            assert call_of("", function, columns).style, "RewardCall(..., style=...) says whose signature it is"
            scored = self._scored(tmp_path, function)
            assert scored == list(rewards), f"{function.__name__} gave {scored} for the answers {self.answers}"

    def test_functions_of_the_lab_and_of_others_are_left_alone(self) -> None:
        """One that is recognised by mistake would be called with other arguments than its author meant."""

        def of_answer(answer: Any) -> Any: ...
        def of_completion(completion: Any) -> Any: ...
        def of_prompt(prompt: Any, row: Any) -> Any: ...
        def of_column(capital: Any) -> Any: ...
        def of_all(trajectory: Any, answer: Any, messages: Any, row: Any) -> Any: ...
        def of_group(answers: Any, group: Any) -> Any: ...
        def of_trl(completions: Any, **columns: Any) -> Any: ...
        def of_verl(data_source: Any, solution_str: Any, ground_truth: Any, extra_info: Any) -> Any: ...

        others = (of_answer, of_completion, of_prompt, of_column, of_all, of_group, of_trl, of_verl)
        own = {"trl": of_trl, "verl": of_verl}.get(self.plugin)
        recognise = plugins.load(plugins.REWARDS, self.plugin).recognise
        taken = [each for each in (*others, RewardCell("return 1.0", {}), object(), "f") if each is not own]
        taken = [each for each in taken if recognise(each, ["capital"]) is not None]
        assert taken == [], f"recognise takes {taken}, which are of others"

    def _scored(self, folder: Path, function: Any) -> list[float | None]:
        session = Session(Settings(home=folder))
        try:
            lab = session.store
            collection = lab.open_collection("scored")
            prompt = [UserMessage(role="user", content="?")]
            (group,) = lab.add_groups(collection, [NewGroup(prompt, dict(self.row))])
            messages = [{"role": "assistant", "content": answer} for answer in self.answers]
            choices = [
                Choice.model_validate({"finish_reason": "stop", "index": 0, "message": message}) for message in messages
            ]
            lab.put(group, [Arrival(i, [each]) for i, each in enumerate(choices)], model="m", step=0, sampling={})
            session.reward(collection.label, function, say=lambda _: None)
            return [trajectory.reward for trajectory in session.collection(collection.label).trajectories]
        finally:
            session.close()


class ReaderTests:
    """A file of another tool, read into a lab and, if the plug-in writes, written and read again.

    Attributes:
        plugin: The name of the entry point, which is the value of `--format`.
        file: A file that the tool has written.
        trajectories: The number of trajectories in it.
        rewards: The number of trajectories in it with a reward.
    """

    plugin: str
    file: Path
    trajectories: int
    rewards: int

    def test_a_file_is_recognised_by_its_first_value(self, tmp_path: Path) -> None:
        read = self._read(tmp_path, self.file)
        assert (len(read), sum(each.reward is not None for each in read)) == (self.trajectories, self.rewards)

    def test_files_of_the_lab_and_of_openai_are_left_alone(self) -> None:
        matches = plugins.load(plugins.READERS, self.plugin).matches
        message = {"role": "user", "content": "?"}
        others: list[Any] = [{"messages_and_choices": []}, {"messages": [message]}, [message], "text", 1, None, {}]
        assert [document for document in others if matches(document)] == []

    def test_a_wrong_value_is_an_error_with_its_place(self, tmp_path: Path) -> None:
        """Nothing of such a file is stored."""
        wrong = tmp_path / "wrong.jsonl"
        wrong.write_text('{"neither": 1}\n')
        session = Session(Settings(home=tmp_path / "lab"))
        message = ""
        try:
            session.files.import_(wrong, "wrong", self.plugin)
        except InputError as error:
            message = error.message
        finally:
            stored = [each.name for each in session.store.collections()]
            session.close()
        assert message.startswith("wrong.jsonl, line 1")
        assert stored == []

    def test_what_it_writes_it_reads_again(self, tmp_path: Path) -> None:
        writer = plugins.load(plugins.READERS, self.plugin)
        if not isinstance(writer, FileWriter):
            return
        session = Session(Settings(home=tmp_path / "lab"))
        try:
            session.files.import_(self.file, "read", self.plugin)
            session.files.export("read", tmp_path / "written.jsonl", self.plugin)
            before = session.collection("read").trajectories
        finally:
            session.close()
        kept = [each for each in before if each.reward is not None or writer.writes_unscored]
        again = self._read(tmp_path / "again", tmp_path / "written.jsonl")
        assert [(each.messages, each.reward) for each in again] == [(each.messages, each.reward) for each in kept]

    def _read(self, folder: Path, file: Path) -> Sequence[StoredTrajectory]:
        session = Session(Settings(home=folder / "read"))
        try:
            session.files.import_(file, "read")
            return session.collection("read").trajectories
        finally:
            session.close()


class SearchTests:
    """A collection in another database, searched as `%search` does.

    Attributes:
        url: The value of `%connect --search`, with the plug-in's name.
        key: The key of the service, if it needs one.
        least: The smallest number of records that the collection has.
    """

    url: str
    key: str | None = None
    least: int = 1

    def test_hits_are_bounded_sorted_and_found_by_their_id(self) -> None:
        name, _, url = self.url.partition(":")
        place = plugins.load(plugins.SEARCH, name).open_place(HttpClient(), url, self.key, None)
        assert all(isinstance(note, str) for note in place.refresh(lambda *_: None))
        assert place.fields() is None or all(isinstance(field, str) for field in place.fields())
        everything = place.search(Search(), lambda *_: None).outcome.hits
        assert len(everything) >= self.least
        assert len({hit.id for hit in everything}) == len(everything)
        few = place.search(Search(limit=Limit(1)), lambda *_: None).outcome.hits
        assert [hit.id for hit in few] == [everything[0].id]
        search = Search(where=Among("#id", (everything[-1].id,)), select=Select(("#document",)))
        (hit,) = place.search(search, lambda *_: None).outcome.hits
        assert hit.id == everything[-1].id
        assert place.documents([hit.id]) == ({hit.id: hit.document} if hit.document is not None else {})
        assert dict(place.documents([])) == {}


class TrackerTests:
    """A tracker of runs, which the lab calls again while a run goes on.

    Attributes:
        tracker: A name for `report_to`, with a place after a colon if the plug-in has one.
        line: What `log` returned last.
    """

    tracker: str
    line: str = ""

    def read(self, home: Path, run: RunTable) -> Mapping[int, Mapping[str, float]]:
        """Return the numbers that the tracker has of a run, by step and name. A subclass must define it.

        home: the lab folder.
        """
        raise NotImplementedError("def read(self, home, run): ... returns {step: {name: value}}")

    def test_a_run_that_goes_on_is_there_once(self, tmp_path: Path) -> None:
        for steps in (2, 2, 4):
            self._written(tmp_path, reward=[0.1 * step for step in range(steps)])

    def test_a_late_number_and_a_changed_one_are_there(self, tmp_path: Path) -> None:
        """Steps are measured on held-out rows some time after they were trained; rewards can be edited."""
        self._written(tmp_path, reward=[0.5, 0.25], held_out=[None, None])
        self._written(tmp_path, reward=[0.5, 0.25], held_out=[0.125, None])
        self._written(tmp_path, reward=[0.5, 0.75], held_out=[0.125, None])

    def test_runs_of_any_name_are_kept_apart(self, tmp_path: Path) -> None:
        for i, name in enumerate(["a", "a/b", "..", "v1.2 final", "größe"]):
            self._written(tmp_path, name, reward=[float(i)])

    def _written(self, home: Path, name: str = "capitals", **numbers: list[float | None]) -> None:
        """Log a run to a tracker that is opened anew, as another kernel does, and compare what it has with the run."""
        steps = range(len(numbers["reward"]))
        times = [datetime(2026, 1, 1, 12, step, tzinfo=UTC) for step in steps]
        run = RunTable("tests", name, {"learning_rate": 1e-5}, ["test"], steps, times, numbers)
        (tracker,) = open_trackers([self.tracker], home)
        self.line = tracker.log(run)
        assert self.line, "log returns a line that says where the run is"
        assert {step: dict(each) for step, each in self.read(home, run).items() if each} == run.by_step()


class EngineTests:
    """An engine, measured as `rolloutlab engine check` does: probabilities, gradients, resuming, seeds, cancelling.

    Attributes:
        engine: The name of the entry point.
        policy: The policy that the engine opens.
        settings: Further settings, such as `engine_url`.
        tolerance: The largest difference of a logprob, in nats, that passes.
        only: The checks to run, by a part of their names; all by default.
    """

    engine: str
    policy: str = "practice"
    settings: Mapping[str, Any] = {}
    tolerance: float = 1e-3
    only: Sequence[str] = ()

    def test_it_computes_what_it_should(self, tmp_path: Path) -> None:
        from rolloutlab.engines.check import Conformance, load_reference
        from rolloutlab.engines.open import open_engine

        model = ModelSettings(engine=self.engine, **self.settings)
        engine = open_engine(self.policy, model, least_seconds=0.0)
        try:
            reference, _ = load_reference(self.policy, model, engine)
            lines = list(Conformance(engine, reference, tmp_path, self.tolerance).run(only=self.only))
        finally:
            engine.close()
        assert lines
        assert [line for line in lines if line.result == "fail"] == []

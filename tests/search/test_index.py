"""The index follows the lab: whatever is stored is found, whatever is gone is not, and it can be made anew."""

import json
import multiprocessing
import sqlite3
import subprocess
import sys
import threading
from itertools import count

import numpy as np
import pytest
from filelock import FileLock

from rolloutlab.api.wire.chat import Choice, UserMessage
from rolloutlab.errors import InputError, LabError
from rolloutlab.search import F, Knn, Search, background
from rolloutlab.search.embedding import Embedder
from rolloutlab.search.engine import vectors
from rolloutlab.search.engine.records import MIGRATIONS, discard
from rolloutlab.search.index import Index
from rolloutlab.search.where import Compare
from rolloutlab.store.lab import Lab
from rolloutlab.store.models import Arrival, NewGroup, Score, SubmittedJob
from rolloutlab.store.sqlite import Database
from tests.labs import lab_with, without_logprobs

CITIES = ["Paris", "Lyon", "Nice", "Lille"]


@pytest.fixture
def lab(tmp_path):
    lab = Lab(tmp_path / "lab.db")
    yield lab
    lab.close()


@pytest.fixture
def put(lab):
    """Samples answers into a new generation of a collection."""

    def put(name, *said):
        prompt = NewGroup([UserMessage(role="user", content="Where?")], {})
        lab_with(lab, said, name=name, prompts=[prompt], make=without_logprobs, model="m")

    return put


@pytest.fixture
def index(lab, tmp_path, monkeypatch):
    monkeypatch.setattr("rolloutlab.search.background.QUIET", 0.0)
    made = []

    def index(embed=None, name="letters"):
        made.append(Index(lab, tmp_path / "search.db", Embedder(name, embed) if embed else None))
        return made[-1]

    yield index
    for each in made:
        each.close()


def letters(texts):
    """How often each of four letters comes: a vector that a reader can check."""
    return [[float(text.lower().count(letter)) for letter in "paln"] for text in texts]


def names(index, search=None):
    index.refresh()
    return [hit.id for hit in index.search(search or Search()).outcome.hits]


def metadata(index, name):
    index.refresh()
    return index.search(Search(where=Compare("#id", "$eq", name))).outcome.hits[0].metadata


def test_what_is_stored_is_found_at_once(put, index):
    mine = index()
    assert names(mine) == []
    put("cities", "Paris", "Lyon")
    assert names(mine) == ["cities:1/0/0", "cities:1/0/1"]
    put("cities", "Nice")
    assert names(mine, Search(rank=Knn("nice"))) == ["cities:2/0/0"]


def test_every_change_of_a_reward_is_searched_by(lab, put, index):
    put("cities", "Paris", "Lyon")
    mine, good = index(), Search(where=Compare("reward", "$gt", 0.5))
    assert names(mine, good) == []
    first, second = lab.groups(lab.find("cities"))[0].trajectories
    lab.rewards.give([Score(first, 1.0, {"right": 1.0}), Score(second, 0.0)], "function")
    assert names(mine, good) == ["cities:1/0/0"]
    told = {"reward": 1.0, "reward.right": 1.0, "source": "function", "advantage_sign": 1}
    assert told.items() <= metadata(mine, "cities:1/0/0").items()
    lab.rewards.give([Score(first, 0.0), Score(second, 1.0)], "hand")
    assert metadata(mine, "cities:1/0/0")["advantage_sign"] == -1
    assert "reward.right" not in metadata(mine, "cities:1/0/0")
    lab.rewards.undo(lab.find("cities"))
    lab.rewards.undo(lab.find("cities"))
    assert not {"reward", "source", "advantage_sign"} & metadata(mine, "cities:1/0/0").keys()


def test_what_is_deleted_is_not_found_and_what_is_renamed_has_its_new_name(lab, put, index):
    put("cities", "Paris")
    mine = index()
    assert names(mine) == ["cities:1/0/0"]
    lab.lifecycle.rename("cities", "towns")
    assert names(mine) == ["towns:1/0/0"]
    lab.lifecycle.delete("towns")
    assert names(mine) == []
    lab.lifecycle.restore("towns")
    assert names(mine) == ["towns:1/0/0"]


def test_a_job_is_known_of_what_it_was_submitted_with(lab, put, index):
    put("cities", "Paris")
    mine = index()
    names(mine)
    lab.jobs.add(SubmittedJob("01ab", "embedded", "m", ("cities:1",), {}, "2026-01-31T12:00:00+00:00"))
    assert metadata(mine, "cities:1/0/0")["job"] == "01ab"


def test_the_status_is_told_while_another_process_removes_a_file_of_the_index(put, index, tmp_path):
    put("capitals", "Paris")
    names(mine := index())
    (tmp_path / "search.db-gone").symlink_to(tmp_path / "nowhere")  # listed, and not there when its size is read
    assert mine.status().indexed == 1


def test_without_a_model_texts_are_compared_by_words_and_with_one_by_meaning(put, index):
    put("cities", *CITIES)
    mine = index()
    assert names(mine, Search(rank=Knn("lyon"))) == ["cities:1/0/1"]
    assert "by their words" in mine.search(Search(rank=Knn("lyon"))).notes[0]
    answer = index(letters).search(Search(rank=Knn("user where assistant: ll")))
    assert (len(answer.outcome.hits), answer.notes) == (4, ("texts are compared by meaning: letters",))
    assert answer.outcome.hits[0].id == "cities:1/0/3"


def test_vectors_of_two_models_are_never_mixed(put, index):
    put("cities", *CITIES)
    names(index(letters), Search(rank=Knn("lyon")))
    other = index(lambda texts: [[1.0, 2.0] for _ in texts], "pairs")
    with pytest.raises(InputError, match=r"mixed embedding spaces: .* letters \(4\), the model here is pairs \(2\)"):
        other.search(Search(rank=Knn("lyon")))
    assert "mixed embedding spaces" in other.status().problem
    assert len(names(other)) == 4
    assert other.rebuild().model == "pairs (2)"
    assert len(names(other, Search(rank=Knn("lyon")))) == 4


def test_an_interrupt_loses_nothing_that_was_embedded(put, index):
    put("cities", *[f"{city} {i}" for city in CITIES for i in range(50)])
    asked = []

    def breaks(texts):
        asked.append(len(texts))
        if len(asked) == 4:
            raise KeyboardInterrupt
        return letters(texts)

    mine = index(breaks)
    with pytest.raises(KeyboardInterrupt):
        names(mine, Search(rank=Knn("lyon")))
    assert (mine.status().indexed, mine.status().embedded) == (200, 128)
    names(mine, Search(rank=Knn("lyon")))
    assert mine.status().embedded == 200
    assert sum(asked) == 1 + 128 + 64 + 72 + 1


def test_the_background_brings_in_what_was_stored(put, index):
    mine, done = index(lambda texts: done.set() or letters(texts)), threading.Event()
    put("cities", *CITIES)
    mine.keep_up()
    assert done.wait(240)
    mine.close()
    assert index().status().indexed == 4


def test_what_went_wrong_in_the_background_is_in_the_status(put, index):
    mine = index(lambda texts: [])
    put("cities", "Paris")
    mine.keep_up()
    mine._background.join()
    assert "gave 0 vectors" in mine.status().problem
    assert "it cannot go on: InputError: letters gave 0 vectors" in repr(mine.status())


def test_an_index_whose_lock_is_refused_is_an_error_in_words(put, index, tmp_path):
    put("cities", *CITIES)
    (tmp_path / "search.lock").mkdir()
    with pytest.raises(LabError, match=r"search\.lock cannot be locked") as error:
        index().refresh()
    assert error.value.hint == f"!mv {tmp_path}/search.lock {tmp_path}/search.lock.old"


def test_a_damaged_index_is_refused_and_made_anew(put, index, tmp_path):
    put("cities", *CITIES)
    mine = index(letters)
    names(mine)
    mine.close()
    path = tmp_path / "search.db"
    path.write_bytes(b"no database" + path.read_bytes()[11:4096] + b"\0" * 4096)
    for left in ("-wal", "-shm"):
        path.with_name(f"search.db{left}").unlink(missing_ok=True)
    again = index(letters)
    with pytest.raises(LabError) as error:
        again.refresh()
    assert "%search --reindex" in error.value.hint
    assert again.rebuild().indexed == 4
    assert len(names(again)) == 4


def test_two_processes_keep_one_index(lab, put, index, tmp_path):
    script = f"""
from pathlib import Path
from rolloutlab.search import Search
from rolloutlab.search.index import Index
from rolloutlab.store.lab import Lab
folder = Path({str(tmp_path)!r})
index = Index(Lab(folder / "lab.db"), folder / "search.db")
index.update()
print(len(index.search(Search()).outcome.hits))
"""
    put("cities", *CITIES)
    others = [subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert len(names(index())) == 4
    assert [other.communicate(timeout=240)[0] for other in others] == ["4\n", "4\n"]


def test_an_interrupt_leaves_nothing_behind_of_what_is_renamed_or_deleted_meanwhile(lab, put, index, monkeypatch):
    put("cities", *[f"{city} {i}" for city in CITIES for i in range(100)])
    put("rivers", *CITIES)
    mine = index()

    def interrupt(_what, done, _total):
        if done == 256:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        mine.update(interrupt)
    assert mine.status().indexed == 256
    lab.lifecycle.rename("cities", "towns")
    lab.lifecycle.delete("rivers")
    found = names(mine)
    assert (len(found), {name.partition(":")[0] for name in found}) == (400, {"towns"})


def test_a_rename_keeps_the_vectors(lab, put, index):
    put("cities", *CITIES)
    asked = []
    mine = index(lambda texts: asked.extend(texts) or letters(texts))
    names(mine, Search(rank=Knn("lyon")))
    told = len(asked)
    lab.lifecycle.rename("cities", "towns")
    assert names(mine, Search(rank=Knn("lyon")))[0].startswith("towns:1/0/")
    assert metadata(mine, "towns:1/0/0")["group"] == "towns:1/0"
    assert len(asked) == told + 1  # the query alone


def test_a_model_that_fails_keeps_nobody_from_searching_without_it(put, index):
    def broken(texts):
        raise RuntimeError("the model is not there")

    put("cities", *CITIES)
    mine = index(broken)
    assert len(names(mine, Search(where=Compare("step", "$eq", 0)))) == 4
    assert names(mine, Search(rank=Knn("lyon", key="bm25"))) == ["cities:1/0/1"]
    with pytest.raises(RuntimeError):
        names(mine, Search(rank=Knn("lyon")))
    mine.keep_up()
    mine._background.join()
    assert "RuntimeError: the model is not there" in mine.status().problem
    with pytest.raises(RuntimeError):
        mine.rebuild()
    assert mine.records.count == 4


def test_a_model_that_gives_no_vectors_is_refused_when_it_is_given(put, index):
    mine = index()
    with pytest.raises(InputError):
        mine.use(Embedder("empty", lambda texts: []))
    assert mine.embedder is None


def test_a_model_that_is_given_makes_its_vectors_in_the_background(put, index):
    put("cities", *CITIES)
    mine = index()
    names(mine)
    mine.keep_up()
    mine.use(Embedder("letters", letters))
    mine._background.join()
    assert mine.status().embedded == 4


def test_while_vectors_are_made_everything_else_is_found_and_the_rest_is_said(put, index, tmp_path, monkeypatch):
    monkeypatch.setattr("rolloutlab.search.index._LOCK_TIMEOUT", 0.01)
    put("cities", *CITIES)
    mine = index(letters)
    names(mine)
    with FileLock(tmp_path / "search.vectors.lock"):
        put("rivers", "Seine")
        assert len(names(mine)) == 5
        notes = mine.search(Search(rank=Knn("lyon"))).notes
    assert notes[1] == "0 of 5 trajectories have vectors so far, and only those are compared"


def test_a_value_that_no_file_can_hold_is_left_out(lab, index):
    collection = lab.open_collection("odd")
    row = {"huge": 2**70, 'name with "quotes"': 1, "reward": 7, "lists": [[1]]}
    (group,) = lab.add_groups(collection, [NewGroup([UserMessage(role="user", content="Where?")], row)])
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "Paris"}}
    lab.put(group, [Arrival(0, [Choice.model_validate(choice)])], model="m", step=0, sampling={})
    told = {name: value for name, value in metadata_of_all(index()).items() if name.startswith("row.")}
    assert told == {'row.name with "quotes"': 1, "row.reward": 7}


def metadata_of_all(index):
    index.refresh()
    (hit,) = index.search(Search()).outcome.hits
    return hit.metadata


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("Straße", 0),
        ("STRASSE", None),
        ("étude", 1),
        ("e\u0301tude", 1),
        ("İstanbul", 2),
        ("Paris?!", 3),
        ("...", None),
    ],
)
def test_words_are_found_however_they_are_written(put, index, query, found):
    put("texts", "Die Straße ist lang", "une étude", "in İstanbul", 'to "Paris"')
    wanted = [] if found is None else [f"texts:1/0/{found}"]
    assert names(index(), Search(rank=Knn(query, key="bm25"))) == wanted


def test_lost_records_are_told_of(put, index):
    put("cities", *CITIES)
    mine = index()
    names(mine)
    mine.records.delete(["cities:1/0/1"])
    assert mine.status().problem == "the index has 1 record too few -> %search --reindex"
    assert repr(mine.rebuild()).endswith("up to date")


def test_a_damaged_mark_is_refused_and_made_anew(put, index):
    put("cities", *CITIES)
    mine = index()
    names(mine)
    mine.records.keep_mark("{}")
    with pytest.raises(LabError, match="damaged"):
        mine.refresh()
    assert mine.rebuild().indexed == 4


def test_a_condition_on_another_kind_of_value_is_told(put, index):
    put("cities", *CITIES)
    mine = index()
    names(mine)
    answer = mine.search(Search(where=Compare("step", "$eq", "0")))
    assert answer.notes == ("F.step == '0': step is a number in every record, never a text",)


class Held:
    """An embedding model that stays at its texts until it is let go; its first text is the probe."""

    def __init__(self):
        self.reached, self.go_on, self.texts = threading.Event(), threading.Event(), []

    def __call__(self, texts):
        self.texts += texts
        if texts != ["rolloutlab"]:
            self.reached.set()
            assert self.go_on.wait(240)
        return letters(texts)


def test_a_model_that_takes_anothers_place_makes_no_vectors_in_its_name(put, index):
    put("cities", *[f"{city} {i}" for city in CITIES for i in range(50)])
    held = Held()
    mine = index(held, "letters")
    mine.keep_up()
    assert held.reached.wait(240)
    others = []
    mine.use(Embedder("others", lambda texts: others.append(len(texts)) or [[1.0, 2.0, 3.0, 4.0] for _ in texts]))
    held.go_on.set()
    mine._background.join()
    assert "vectors of letters (4), the model here is others (4)" in mine.status().problem
    assert sum(others) == 1


def test_whoever_is_at_work_lets_another_process_have_its_turn(put, index, monkeypatch):
    busy = threading.Event()
    used = count()
    monkeypatch.setattr(background, "_measure_other_threads", lambda: next(used) if busy.is_set() else 0)
    put("cities", *[f"{city} {i}" for city in CITIES for i in range(50)])
    first, second = index(), index()
    monkeypatch.setattr(first.records, "upsert", _then(first.records.upsert, busy.set))
    first.keep_up()
    assert busy.wait(240)
    assert second.refresh() == []
    assert second.status().indexed == 200
    busy.clear()
    first._background.join()
    assert first.status().problem is None


def _then(work, after):
    def done(*given):
        work(*given)
        after()

    return done


def test_what_is_stored_while_vectors_are_made_is_indexed_without_another_cell(put, index):
    held = Held()
    mine = index(held)
    put("cities", *CITIES)
    mine.keep_up()
    assert held.reached.wait(240)
    put("rivers", "Seine")
    mine.keep_up()
    held.go_on.set()
    mine._background.join()
    assert (mine.status().indexed, mine.status().embedded, mine.status().problem) == (5, 5, None)


def test_a_model_that_hangs_keeps_nobody_from_a_new_index(put, index, monkeypatch):
    monkeypatch.setattr("rolloutlab.search.index._LOCK_TIMEOUT", 0.01)
    monkeypatch.setattr(background, "_LONGEST_END", 0.01)
    held = Held()
    mine = index(held)
    put("cities", *CITIES)
    mine.keep_up()
    assert held.reached.wait(240)
    status = mine.rebuild()
    assert (status.indexed, status.embedded, status.problem) == (4, 0, None)
    mine.close()
    held.go_on.set()


def test_the_status_is_there_though_the_model_is_not(put, index):
    put("cities", *CITIES)
    names(index(letters), Search(rank=Knn("lyon")))

    def broken(texts):
        raise RuntimeError("the model is not there")

    status = index(broken).status()
    assert (status.embedded, status.problem) == (4, "RuntimeError: the model is not there")


def test_a_model_that_came_back_is_no_problem_any_more(put, index):
    down = [True]

    def sometimes(texts):
        if down[0]:
            raise RuntimeError("down")
        return letters(texts)

    put("cities", *CITIES)
    mine = index(sometimes)
    mine.keep_up()
    mine._background.join()
    down.clear()
    down.append(False)
    names(mine, Search(rank=Knn("lyon")))
    assert mine.status().problem is None


def test_a_forked_process_searches_with_threads_of_its_own(monkeypatch):
    monkeypatch.setattr(vectors, "_ALONE", 0)
    monkeypatch.setattr(vectors, "_HELPERS", 2)
    kept = vectors.Vectors(2)
    kept.grow(3)
    kept.put(np.arange(3), np.array([[1, 0], [0, 1], [1, 1]], np.float32))

    def nearest():
        return kept.nearest(np.array([0, 1], np.float32), 1, np.arange(3), "cosine").places_K.tolist()

    assert nearest() == [1]
    child = multiprocessing.get_context("fork").Process(target=lambda: sys.exit(0 if nearest() == [1] else 1))
    child.start()
    child.join(240)
    child.kill()
    assert child.exitcode == 0


THOUGHT = "<think>By the Seine.</think>\n\nParis"
OLD, NEW = f"user: Where?\n\nassistant: {THOUGHT}", "user: Where?\n\nassistant reasons: By the Seine.\nassistant: Paris"


def without_renewal(records):
    """The records of an index as an earlier version had them: reasoning in the answer, and no field of its own."""
    for id_, document, metadata in records:
        had = {name: value for name, value in json.loads(metadata).items() if name != "reasoning"}
        yield id_, OLD if document == NEW else document, json.dumps(had)


def made_by_version(version, as_it_was, put, index, path):
    """The file of an index that a version made of three answers, one of which has reasoning; with vectors.

    version: how many scripts it has. as_it_was: what it wrote of a record's id, document and metadata.
    """
    put("cities", THOUGHT, "Lyon", "Nice")
    mine = index(letters)
    mine.refresh()
    mine.search(Search(rank=Knn("lyon")))
    mine.close()
    made = sqlite3.connect(path)
    records = made.execute("SELECT id, document, metadata FROM records ORDER BY row").fetchall()
    vectors_of = made.execute("SELECT row, vector FROM vectors ORDER BY row").fetchall()
    state = made.execute("SELECT name, value FROM state").fetchall()
    made.close()
    discard(path)
    database = Database(path, MIGRATIONS[:version])
    with database.write() as connection:
        sql = "INSERT INTO records (id, document, metadata, revision) VALUES (?, ?, ?, 1)"
        connection.executemany(sql, as_it_was(records))
        connection.executemany("INSERT INTO vectors VALUES (?, ?)", vectors_of)
        connection.executemany("INSERT OR REPLACE INTO state VALUES (?, ?)", state)
    database.close()
    return path


@pytest.fixture
def old_index(put, index, tmp_path):
    """One whose documents have reasoning in the answer."""
    return made_by_version(2, without_renewal, put, index, tmp_path / "search.db")


@pytest.fixture
def index_of_lengths(put, index, tmp_path):
    """One that knows how long reasoning is, and not where."""
    return made_by_version(3, list, put, index, tmp_path / "search.db")


def test_an_index_that_knows_the_length_of_reasoning_alone_learns_where_it_is(index_of_lengths, index):
    mine, shown = index(letters), []
    mine.refresh(lambda *step: shown.append(step))
    assert shown == [("renewing the index of", 0, 1)]
    assert names(mine, Search(where=F.reasoning_text.contains("Seine"))) == ["cities:1/0/0"]
    assert mine.status().embedded == 3
    mine.refresh(lambda *step: shown.append(step))
    assert len(shown) == 1


@pytest.mark.parametrize("spans", ["{", "7", "[[1]]", '[["a", "b"]]'])
def test_reasoning_at_a_place_that_is_none_is_damage(put, index, tmp_path, spans):
    put("cities", THOUGHT)
    mine = index()
    mine.refresh()
    file = sqlite3.connect(tmp_path / "search.db")
    file.execute("UPDATE records SET reasoning = ?", (spans,))
    file.commit()
    file.close()
    with pytest.raises(LabError, match="where reasoning is cannot be read") as damage:
        names(mine, Search(where=F.reasoning_text.contains("Seine")))
    assert damage.value.hint == "%search --reindex"
    assert names(mine, Search(where=F.document.contains("Seine"))) == ["cities:1/0/0"]


def test_reasoning_of_more_records_than_are_read_at_a_time_is_read(put, index, monkeypatch):
    monkeypatch.setattr("rolloutlab.search.engine.in_memory.CHUNK", 2)
    put("cities", THOUGHT, "Seine", f"{THOUGHT}!", "Lyon", "<think>Rhône</think>Lyon", THOUGHT)
    thought = [f"cities:1/0/{i}" for i in (0, 2, 5)]
    assert names(index(), Search(where=F.reasoning_text.contains("Seine"))) == thought


def test_an_index_of_an_earlier_version_is_renewed_by_the_next_search(old_index, index):
    mine, shown = index(), []
    mine.refresh(lambda *step: shown.append(step))
    assert shown == [("renewing the index of", 0, 3)]
    assert list(mine.documents(["cities:1/0/0"]).values()) == [NEW]
    assert metadata(mine, "cities:1/0/0")["reasoning"] == len("By the Seine.")
    assert names(mine, Search(where=Compare("reasoning", "$gt", 0))) == ["cities:1/0/0"]
    assert names(mine, Search(rank=Knn("think", key="bm25"))) == []
    assert names(mine, Search(rank=Knn("seine", key="bm25"))) == ["cities:1/0/0"]
    mine.refresh(lambda *step: shown.append(step))
    assert len(shown) == 1


def test_only_documents_that_changed_lose_their_vectors(old_index, index):
    mine, embedded = index(letters), []
    mine.refresh()
    assert [bare.document for bare in mine.records.without_vectors(0, 9)] == [NEW]
    mine.search(Search(rank=Knn("lyon")), lambda *step: embedded.append(step))
    assert embedded == [("embedding", 2, 3)]
    assert mine.status().embedded == 3


def test_a_renewal_that_was_interrupted_goes_on_where_it_stopped(old_index, index, monkeypatch):
    monkeypatch.setattr("rolloutlab.search.index._BATCH", 1)
    mine, shown = index(), []

    def stop(*step):
        if step[1] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        mine.refresh(stop)
    mine.refresh(lambda *step: shown.append(step))
    assert shown == [("renewing the index of", 0, 1)]
    assert list(mine.documents(["cities:1/0/0"]).values()) == [NEW]


def test_a_renewed_index_keeps_rewards_and_names_that_changed_meanwhile(old_index, lab, put, index):
    put("cities", "Lille")
    lab.lifecycle.rename("cities", "towns")
    stored = [t for group in lab.groups(lab.find("towns:1")) for t in group.trajectories]
    lab.rewards.give([Score(trajectory, 0.5) for trajectory in stored], "hand")
    mine = index()
    mine.refresh()
    assert metadata(mine, "towns:1/0/0")["reward"] == 0.5
    assert list(mine.documents(["towns:1/0/0"]).values()) == [NEW]
    assert mine.records.outdated() == []


def test_an_index_that_is_made_now_has_nothing_to_renew(put, index):
    put("cities", THOUGHT)
    mine, shown = index(), []
    mine.refresh(lambda *step: shown.append(step))
    assert {step[0] for step in shown} == {"indexing", "indexing rewards of"}
    assert mine.records.outdated() == []

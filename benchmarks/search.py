"""Searching: the ten nearest of 100,000 records by cosine whose reward is above 0.5, and how it grows to a million.

The peers are chromadb (PersistentClient) and LanceDB (flat, prefiltered), each on the same vectors in a process of its
own that only asks. Ours is exact: its answers are compared with a plain product in float64.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from goals import Goal, conclude
from measure import ROOT, alone, peak_memory, peer_python

from rolloutlab.search import FieldTerm, Knn, Limit, Search
from rolloutlab.search.engine.execute import execute
from rolloutlab.search.engine.records import Record, Records
from rolloutlab.search.where import Compare

DIMENSION, QUERIES, BATCH = 384, 30, 10_000
SEARCHES_BESIDE = 100
SIZES = (10_000, 100_000, 1_000_000)
COMPARED = SIZES[1]
GOOD = Compare("reward", "$gt", 0.5)


def made(count: int) -> Iterator[tuple[int, Any, Any]]:
    """Batches of vectors and rewards, the same ones every time."""
    for start in range(0, count, BATCH):
        random = np.random.default_rng(start)
        yield start, random.standard_normal((BATCH, DIMENSION), np.float32), random.random(BATCH)


def fill(path: Path, count: int) -> float:
    """Rows per second that are written."""
    records, seconds = Records(path), 0.0
    for start, vectors_ND, rewards_N in made(count):
        rows = [
            Record(
                str(start + i),
                f"user: sort the letters of row {start + i}\nassistant: abcd",
                {"reward": float(rewards_N[i]), "step": i % 100, "model": f"lab/{i % 3}"},
                vectors_ND[i],
            )
            for i in range(len(vectors_ND))
        ]
        begun = time.perf_counter()
        records.upsert(rows)
        seconds += time.perf_counter() - begun
    records.close()
    return count / seconds


def ask(path: Path, queries_QD: Any) -> dict[str, Any]:
    """As the peers' script tells it."""
    records = Records(path)
    searches = [Search(GOOD, Knn(query_D.tolist(), limit=10), limit=Limit(10)) for query_D in queries_QD]
    begun = time.perf_counter()
    execute(searches[0], records)
    opening = time.perf_counter() - begun
    seconds, ids = [], []
    for search in searches:
        begun = time.perf_counter()
        ids.append([hit.id for hit in execute(search, records).hits])
        seconds.append(time.perf_counter() - begun)
    return {"seconds": seconds, "ids": ids, "bytes": peak_memory(os.getpid()), "opening": opening}


def peer(python: str, name: str, folder: Path, deed: str) -> dict[str, Any]:
    command = [
        python,
        str(ROOT / "benchmarks/peers/search_local.py"),
        name,
        deed,
        str(folder),
    ]
    answer = subprocess.run(
        command, capture_output=True, text=True, check=True, env={**os.environ, "ANONYMIZED_TELEMETRY": "False"}
    )
    return dict(json.loads(answer.stdout.splitlines()[-1]))


def exact(vectors_ND: Any, rewards_N: Any, query_D: Any) -> list[str]:
    """The ten nearest, the slow way."""
    rows = np.flatnonzero(rewards_N > 0.5)
    vectors = vectors_ND[rows].astype(np.float64)
    return [str(rows[i]) for i in np.argsort(-(vectors @ query_D) / np.linalg.norm(vectors, axis=1))[:10]]


def write(path: Path, stop: Any) -> float:
    """Rows per second of a process that writes ten at a time until it is told to stop."""
    records, count, begun = Records(path), 0, time.perf_counter()
    random = np.random.default_rng(7)
    while not stop.is_set():
        vectors = random.standard_normal((10, DIMENSION), np.float32)
        records.upsert([Record(f"new {count + i}", "new", {"written": time.time()}, vectors[i]) for i in range(10)])
        count += 10
        time.sleep(max(0.0, begun + count / 1100 - time.perf_counter()))  # a trainer's pace, not the disk's
    return count / (time.perf_counter() - begun)


def _written(path: Path, stop: Any, rates: Any) -> None:
    rates.put(write(path, stop))


def beside_a_writer(path: Path, query_D: Any) -> dict[str, float]:
    """Searches while another process writes: its rows per second, and the age of the newest that is seen."""
    spawn = get_context("spawn")
    stop, rates = spawn.Event(), spawn.Queue()
    # a daemon, so that an error here does not wait for it for ever
    writer = spawn.Process(target=_written, args=(path, stop, rates), daemon=True)
    records = Records(path)
    nearest = Search(GOOD, Knn(query_D.tolist(), limit=10), limit=Limit(10))
    newest = Search(Compare("written", "$gt", 0), -FieldTerm("written"), limit=Limit(1))
    execute(nearest, records)
    writer.start()
    while not execute(newest, records).hits:
        time.sleep(0.01)
    seconds, ages = [], []
    for _ in range(SEARCHES_BESIDE):
        begun = time.perf_counter()
        execute(nearest, records)
        seconds.append(time.perf_counter() - begun)
        began = time.time()
        written = records.within(lambda all_: all_.get(all_.filter(newest.where), ["written"])["written"])
        ages.append(began - max(written))
        time.sleep(0.01)
    stop.set()
    rate = rates.get()
    writer.join()
    return {"rate": rate, "p50": median(seconds), "age": max(ages)}


def main() -> int:
    python = peer_python("vectors")
    random = np.random.default_rng(1)
    queries_QD = random.standard_normal((QUERIES, DIMENSION), np.float32)
    figures: dict[int, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        batches = [(vectors_ND, rewards_N) for _, vectors_ND, rewards_N in made(COMPARED)]
        vectors_ND, rewards_N = (np.concatenate(arrays) for arrays in zip(*batches, strict=True))
        np.save(folder / "vectors.npy", vectors_ND)
        np.save(folder / "rewards.npy", rewards_N)
        np.save(folder / "queries.npy", queries_QD)
        for count in SIZES:
            path = folder / f"{count}.db"
            rate = alone(fill, path, count)
            figures[count] = alone(ask, path, queries_QD)
            told(f"{count:,} records", figures[count])
            print(
                f"  {rate:,.0f} rows/s written; first search, which reads all, {figures[count]['opening']:.1f} s",
                flush=True,
            )
        (folder / f"{SIZES[2]}.db").unlink()
        expected = [exact(vectors_ND, rewards_N, query_D) for query_D in queries_QD]
        ours = figures[COMPARED]
        ours["ids"] = alone(ask, folder / f"{COMPARED}.db", queries_QD)["ids"]
        busy = beside_a_writer(folder / f"{COMPARED}.db", queries_QD[0])
        beside = f"p50 {1000 * busy['p50']:.1f} ms, newest row {busy['age']:.2f} s old"
        print(f"beside a writer of {busy['rate']:,.0f} rows/s: {beside}", flush=True)
        peers = {}
        for database in ("lancedb", "chromadb"):
            seconds = peer(python, database, folder, "fill")["seconds"]
            peers[database] = peer(python, database, folder, "ask")
            told(database, peers[database])
            print(
                f"  {COMPARED / seconds:,.0f} rows/s written; recall {recall(peers[database]['ids'], expected):.3f}",
                flush=True,
            )
    p50 = median(ours["seconds"])
    largest = figures[SIZES[2]]
    return conclude(
        [
            Goal("search_recall", recall(ours["ids"], expected), ">=", 1.0),
            Goal("search_chromadb_times_ours", median(peers["chromadb"]["seconds"]) / p50, ">=", 20),
            Goal("search_lancedb_times_ours", median(peers["lancedb"]["seconds"]) / p50, ">=", 8),
            Goal("search_million_seconds", median(largest["seconds"]), "<=", 0.15),
            Goal("search_million_gigabytes", largest["bytes"] / 1e9, "<=", 2.5),
            Goal("search_writer_rows_per_second", busy["rate"], ">=", 1000),
            Goal("search_newest_row_seconds", busy["age"], "<=", 1),
        ]
    )


def recall(ids: list[list[str]], expected: list[list[str]]) -> float:
    return sum(len(set(a) & set(b)) for a, b in zip(ids, expected, strict=True)) / sum(map(len, expected))


def told(name: str, figures: dict[str, Any]) -> None:
    print(f"{name:18} p50 {1000 * median(figures['seconds']):6.1f} ms, {figures['bytes'] / 1e6:6.0f} MB", flush=True)


if __name__ == "__main__":
    sys.exit(main())

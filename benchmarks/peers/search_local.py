"""The nearest records under a filter, by chromadb (PersistentClient) or LanceDB (flat, prefiltered).

Run it with the Python of their own environment (benchmarks/peers/search.txt):

    search_local.py chromadb|lancedb fill|ask FOLDER > figures.json

FOLDER holds vectors.npy (N x D), rewards.npy (N) and queries.npy (Q x D). `fill` makes a database of them there and
says its seconds; `ask` says the seconds of each query for the ten nearest by cosine whose reward is above 0.5, their
ids, and the most bytes that the process had in memory.
"""

import json
import re
import sys
import time
from pathlib import Path

import numpy as np

FEW = 5000


def fill_chromadb(folder: Path, vectors_ND, rewards_N) -> None:
    import chromadb

    client = chromadb.PersistentClient(str(folder / "chromadb"))
    collection = client.create_collection("records", configuration={"hnsw": {"space": "cosine"}})
    for i in range(0, len(vectors_ND), FEW):
        rows = range(i, min(i + FEW, len(vectors_ND)))
        metadatas = [{"reward": float(rewards_N[j]), "step": j % 100, "model": f"lab/{j % 3}"} for j in rows]
        collection.add([str(j) for j in rows], embeddings=vectors_ND[rows.start : rows.stop], metadatas=metadatas)


def chromadb_asker(folder: Path):
    import chromadb

    collection = chromadb.PersistentClient(str(folder / "chromadb")).get_collection("records")

    def ask(query_D):
        found = collection.query(
            query_embeddings=[query_D], n_results=10, where={"reward": {"$gt": 0.5}}, include=["distances"]
        )
        return found["ids"][0]

    return ask


def fill_lancedb(folder: Path, vectors_ND, rewards_N) -> None:
    import lancedb
    import pyarrow as pa

    count, dimension = vectors_ND.shape
    columns = {
        "id": pa.array([str(i) for i in range(count)]),
        "reward": pa.array(rewards_N),
        "step": pa.array([i % 100 for i in range(count)]),
        "model": pa.array([f"lab/{i % 3}" for i in range(count)]),
        "vector": pa.FixedSizeListArray.from_arrays(pa.array(vectors_ND.ravel()), dimension),
    }
    lancedb.connect(folder / "lancedb").create_table("records", pa.table(columns))


def lancedb_asker(folder: Path):
    import lancedb

    table = lancedb.connect(folder / "lancedb").open_table("records")

    def ask(query_D):
        search = table.search(query_D).distance_type("cosine").where("reward > 0.5", prefilter=True)
        return search.select(["id"]).limit(10).to_arrow()["id"].to_pylist()

    return ask


def main() -> None:
    name, deed, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    if deed == "fill":
        vectors_ND, rewards_N = np.load(folder / "vectors.npy"), np.load(folder / "rewards.npy")
        begun = time.perf_counter()
        {"chromadb": fill_chromadb, "lancedb": fill_lancedb}[name](folder, vectors_ND, rewards_N)
        print(json.dumps({"seconds": time.perf_counter() - begun}))
        return
    ask = {"chromadb": chromadb_asker, "lancedb": lancedb_asker}[name](folder)
    seconds, ids = [], []
    for query_D in np.load(folder / "queries.npy"):
        begun = time.perf_counter()
        ids.append(ask(query_D))
        seconds.append(time.perf_counter() - begun)
    peak = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    print(json.dumps({"seconds": seconds, "ids": ids, "bytes": int(peak[1]) * 1024}))


if __name__ == "__main__":
    main()

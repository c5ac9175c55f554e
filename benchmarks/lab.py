"""The lab: how soon a file of 100,000 trajectories is open, its collections are listed and one group is read.

The peer is sqlite3 itself, counting the trajectories of the same file.
"""

import sqlite3
import sys
import tempfile
from pathlib import Path

from goals import Goal, conclude
from measure import best
from mock_service import completion

from rolloutlab.api.wire.chat import ChatCompletion, UserMessage
from rolloutlab.store.lab import Lab
from rolloutlab.store.models import Arrival, NewGroup, StoredCollection

COLLECTIONS, GROUPS, MEMBERS = 10, 1250, 8
TOTAL = COLLECTIONS * GROUPS * MEMBERS


def fill(path: Path) -> None:
    """Collections of groups whose trajectories are the mock service's 50 tokens."""
    lab = Lab(path)
    prompt = [UserMessage(role="user", content="Sort these letters: d b a c")]
    choice = ChatCompletion.model_validate(completion()).choices[0]
    arrivals = [Arrival(position, [choice]) for position in range(MEMBERS)]
    for i in range(COLLECTIONS):
        collection = lab.open_collection(f"letters{i}", {"total": GROUPS * MEMBERS})

        def put(collection: StoredCollection = collection) -> None:
            for group in lab.add_groups(collection, [NewGroup(prompt, {"i": j}) for j in range(GROUPS)]):
                lab.put(group, arrivals, model="mock", step=0, sampling={"temperature": 1.0})

        lab.at_once(put)
    lab.close()


def count(path: Path) -> None:
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT count(*) FROM trajectories").fetchone() == (TOTAL,)
    connection.close()


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "lab.db"
        fill(path)
        lab = Lab(path)
        group = lab.collection("letters5")
        seconds = {
            "opening": best(lambda: Lab(path).close()),
            "listing": best(lambda: lab.collections()),
            "group": best(lambda: lab.groups(group, GROUPS // 2)),
        }
        peer = best(lambda: count(path))
        megabytes = path.stat().st_size / 1e6
        lab.close()
    print(f"{TOTAL:,} trajectories in {megabytes:.0f} MB; sqlite3 counts them in {1000 * peer:.1f} ms")
    for name, figure in seconds.items():
        print(f"{name:8} {1000 * figure:7.1f} ms, {figure / peer:6.2f} of that")
    return conclude([Goal(f"lab_{name}_seconds", figure, "<=", 0.1) for name, figure in seconds.items()])


if __name__ == "__main__":
    sys.exit(main())

"""A cluster that the engine on Ray starts itself: a line of JSON with where this network namespace is listened to.

unshare -rnpf --mount-proc --kill-child sh -c 'ip link set lo up && exec python ray_alone.py'
"""

import json
import os
import subprocess
import sys
from pathlib import Path

from rolloutlab.engines.open import open_engine
from rolloutlab.errors import ServiceError
from rolloutlab.policy.decode import CompletionRequest
from rolloutlab.settings import ModelSettings

LISTENS = "0A"
LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}
"""127.0.0.1, the same mapped to IPv6, and ::1, as the kernel prints them."""


def main() -> None:
    try:
        engine = open_engine("practice", ModelSettings(engine="ray"))
    except ServiceError as error:  # Ray gives its parts 30 s to start, which is little on a busy machine
        print(error)
        sys.exit(75)
    import ray  # after the token is made

    lines = [
        line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]
    ]
    hosts = {line[1].rpartition(":")[0] for line in lines if line[3] == LISTENS}
    rows = engine.sample(None, [CompletionRequest((1, 2, 3), 8, index=i) for i in range(4)]).result()
    address = ray.get_runtime_context().gcs_address
    stranger = subprocess.run(
        [sys.executable, "-c", f"import ray; ray.init({address!r})"],
        capture_output=True,
        text=True,
        env={**os.environ, "RAY_AUTH_TOKEN": "0" * 64},
    )
    values = {
        "refused": stranger.returncode > 0 and "InvalidAuthToken" in stranger.stderr,
        "listening": bool(hosts),
        "elsewhere": sorted(hosts - LOOPBACK),
        "rows": len(rows),
        **engine.status(),
        "token_file": (Path.home() / ".ray").exists(),
    }
    engine.close()
    print(json.dumps(values), flush=True)


if __name__ == "__main__":
    main()

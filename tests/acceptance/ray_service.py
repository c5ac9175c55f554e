"""What a user does with a service on Ray: a line of JSON each for `engine check`, notebook 01, and a kill in mid-job.

python ray_service.py HOST:PORT FOLDER
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from ray_nodes import tell
from safetensors.torch import load_file

from rolloutlab.errors import UnreachableError
from rolloutlab.session import Session
from rolloutlab.settings import read_settings

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "notebooks" / "01_first_loop.ipynb"
PROMPT = "Sort the letters: {{letters}}"


def main(url: str, home: Path) -> None:
    settings = {"HOME": str(home), "ENGINE": "ray", "ENGINE_URL": url, "LINGER": "2"}
    environment = {f"ROLLOUTLAB_{name}": value for name, value in settings.items()}
    killed(environment, home)
    report = json.loads(output(environment, "-m", "rolloutlab", "engine", "check", "--json"))
    lines = {line["name"]: [line["result"], line["gap"], line["note"]] for line in report["lines"]}
    tell("check", passed=report["passed"], status=report["status"], lines=lines)
    tell("notebook", printed=output(environment, str(ROOT / "notebooks" / "run.py"), str(NOTEBOOK)))


def output(environment: dict[str, str], *arguments: str) -> str:
    """What a program in Python prints, whatever its exit status."""
    run = subprocess.run(
        [sys.executable, *arguments], stdout=subprocess.PIPE, text=True, env={**os.environ, **environment}
    )
    return run.stdout.strip()


def killed(environment: dict[str, str], home: Path) -> None:
    """SIGKILL of the service after three steps of a job, beside the same job of another model that is left alone."""
    lab = Session(read_settings(environment))
    alone_model = lab.model("lab/alone")
    lab.chat("c", PROMPT, n=8, max_tokens=16, over=[{"letters": f"c b a {i}"} for i in range(32)])
    lab.reward("c", lambda trajectory, *_: float(trajectory.id % 3))
    alone = train(lab)
    alone.wait(progress=False)
    killed_model = lab.model("lab/killed")
    job = train(lab)
    while steps(job) < 3:
        time.sleep(0.02)
    end(home, signal.SIGKILL)
    while job_status(job) not in ("succeeded", "failed"):
        time.sleep(0.2)
    first, second = (tensors(home, model.id) for model in (alone_model, killed_model))
    kinds = [event.type for event in job.events()]
    values = {
        "status": job.status,
        "restarts": kinds.count("restarted"),
        "expected_steps": steps(alone),
        "steps": steps(job),
        "optimizer_steps": max(float(value) for name, value in second.items() if name.endswith(".step")),
        "same_bits": first.keys() == second.keys() and all(first[name].equal(second[name]) for name in first),
        "jobs": len(lab.jobs()),
    }
    tell("killed service", **values)
    end(home, signal.SIGTERM)


def end(home: Path, number: int) -> None:
    """Send a signal to the service."""
    os.kill(json.loads((home / "service" / "service.json").read_text())["pid"], number)


def train(lab: Session) -> Any:
    return lab.train("c", wait=False, say=lambda _: None)


def job_status(job: Any) -> str:
    """Asking starts the service again, if it is gone."""
    try:
        return str(job.status)
    except UnreachableError as error:
        return str(error)


def steps(job: Any) -> int:
    return sum(event.type == "gradient_step" for event in job.events())


def tensors(home: Path, model: str) -> dict[str, Any]:
    """Of checkpoint 1: the adapter and its moments."""
    folder = home / "service" / "models" / model / "1"
    return load_file(folder / "adapter_model.safetensors") | load_file(folder / "optimizer.safetensors")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))

"""What the lab holds of a captured collection, and the first step of a job that trains it: a JSON object.

Run by the Python that has rolloutlab; the lab and the service are those of the environment.
"""

import json
import sys

from rolloutlab import Session


def main(name: str) -> None:
    lab = Session()
    trajectories = [trajectory for group in lab.collection(name).groups for trajectory in group.trajectories]
    shapes = [
        [[getattr(item, "role", "sampled") for item in history.messages_and_choices] for history in t.histories()]
        for t in trajectories
    ]
    values = iter(range(len(trajectories)))
    lab.reward(name, lambda answer: float(next(values) % 2), cache=False, overwrite=True)
    job = lab.train(name, {"learning_rate": 0.0}, say=lambda _: None).wait()
    steps = [event.data for event in job.events() if event.type == "gradient_step"]
    ratios = [step[which] for step in steps for which in ("ratio_mean", "ratio_max")]
    logs = [log for t in trajectories for log in t.extra.get("logs", ())]
    before = {"lengths": [t.components.get("length") for t in trajectories], "logs": logs}
    before |= {"rewards": [t.reward for t in trajectories], "components": [dict(t.components) for t in trajectories]}
    before["sessions"] = [t.extra["metadata"].get("session") for t in trajectories]
    print(json.dumps({"shapes": shapes, "ratios": ratios, "tokens": [t.tokens for t in trajectories], **before}))
    lab.close()


main(sys.argv[1])

"""Guess the number: fine-tune the practice policy on games of a random player, then RL. argv: seed, jobs, sft epochs."""
import json, random, sys, time, tempfile, pathlib, statistics
sys.path.insert(0, "e1")
from tests.conftest import _service
from rolloutlab.policy.model import load_policy
from rolloutlab.session import Session
from rolloutlab.settings import Settings
from rolloutlab import Step
SEED, JOBS, GAMES = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
N, TURNS = 20, 12
class GuessNumber:
    def __init__(self, row): self.target, self.turns = row["target"], 0
    def reset(self, seed): return f"Guess a number from 1 to {N}."
    def step(self, answer):
        self.turns += 1
        text = answer.strip()
        guess = int(text) if text.isdecimal() and len(text) < 4 else None
        if guess == self.target: return Step("right", 1.0, True, {"turns": self.turns})
        if guess is None: return Step("a number", -0.2, False, {"turns": TURNS})
        return Step("higher" if guess < self.target else "lower", -0.1, False, {"turns": TURNS})
def game(rng):
    target = rng.randint(1, N); env = GuessNumber({"target": target})
    messages = [{"role": "system", "content": "Answer with one number."}, {"role": "user", "content": env.reset(0)}]
    last, hint = None, None
    for _ in range(TURNS):
        low, high = 1, N
        if rng.random() < 0.6:
            if hint == "higher": low = last + 1
            if hint == "lower": high = last - 1
        guess = rng.randint(low, high) if low <= high else rng.randint(1, N)
        messages.append({"role": "assistant", "content": str(guess)})
        step = env.step(str(guess))
        if step.done: break
        last, hint = guess, step.observation
        messages.append({"role": "user", "content": hint})
    while messages[-1]["role"] != "assistant": messages.pop()
    return {"messages": messages}
home = pathlib.Path(tempfile.mkdtemp(dir="/tmp/e1work"))
service = _service(load_policy("practice"), home / "service")
lab = Session(Settings(home=home, service=service.address), http=service.http)
rng = random.Random(SEED)
(home / "games.jsonl").write_text("\n".join(json.dumps(game(rng)) for _ in range(GAMES)))
began = time.process_time()
lab.model(f"lab/guess{SEED}")
job = lab.train(str(home / "games.jsonl"), {"learning_rate": 5e-3, "batch_size": 16}, sft=True, say=lambda _: None)
print("sft", round(time.process_time() - began), "s CPU", flush=True)
rows = [{"target": t} for t in range(1, N + 1)]
train, held = rows[::2], rows[1::2]
options = dict(n=8, env=GuessNumber, max_turns=TURNS, max_tokens=4)
def measure(name):
    c = lab.chat(name, "system: Answer with one number.", over=held, seed=7, **options)
    turns = [t.extra["metrics"]["turns"] for t in c.trajectories]
    return statistics.mean(turns), sum(t.episode_end == "done" for t in c.trajectories) / len(turns)
print("after sft", measure("before"), [m["content"] for m in lab.collection("before").trajectories[0].messages], flush=True)
loop = lab.loop("guess", "system: Answer with one number.", over=train, jobs=JOBS, seed=SEED, options={"learning_rate": 2e-3}, say=lambda l: print(l, flush=True), **options)
print("after rl", measure("after"), [m["content"] for m in lab.collection("after").trajectories[0].messages], round(time.process_time() - began), "s CPU", flush=True)
service.stop() if False else None

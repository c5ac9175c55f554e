"""The serverless backend of `openpipe-art`: a model is registered, learns over a loop, and is deleted again."""

import asyncio
import json
import os
import sys
from collections.abc import Callable, Coroutine
from itertools import permutations
from statistics import mean

import httpx
import pytest

contacted = set()
"""Every host that this process looks up or connects to, from the backend's import on, as Python's audit events tell."""


def note(event, arguments):
    if event == "socket.getaddrinfo":
        contacted.add(arguments[0])
    elif event == "socket.connect" and isinstance(arguments[1], tuple):
        contacted.add(arguments[1][0])


sys.addaudithook(note)
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else litellm asks for prices on the network

import art  # noqa: E402
from openai import NotFoundError, UnprocessableEntityError  # noqa: E402
from openai._types import NOT_GIVEN  # noqa: E402

os.environ.pop("WANDB_API_KEY", None)  # with one, also from an .env file, train() reports to a host of its own

SCORES = {"maybe": 1.0, "no": 0.75, "yes": 0.5}
PROMPTS = [
    f"{verb} {first}, {second} or {third}."
    for verb in ("Respond with", "Answer with")
    for first, second, third in permutations(SCORES)
]
JOBS = 4
LEARNING_RATE = 2e-3


@pytest.fixture
def lab(served, tmp_path) -> Callable[[Callable[..., Coroutine]], None]:
    """Runs a coroutine function on a backend and a model of this test's own, registered with it."""

    async def run(use):
        backend = art.ServerlessBackend(api_key=served.token, base_url=served.inference_base_url)
        model = trainable(tmp_path)
        await model.register(backend)
        try:
            await use(backend, model)
        finally:
            await model.openai_client().close()
            await backend.close()

    return lambda use: asyncio.run(run(use))


def trainable(folder):
    return art.TrainableModel(
        name=folder.name, project="acceptance", base_model="practice", base_path=str(folder), report_metrics=[]
    )


async def sample(model, seed, step=None):
    """A scored group for each prompt, eight completions each."""
    asked = [[{"role": "user", "content": prompt}] for prompt in PROMPTS]
    name, client = model.get_inference_name(step), model.openai_client()
    answers = [
        client.chat.completions.create(model=name, messages=messages, n=8, max_tokens=16, seed=seed, logprobs=True)
        for messages in asked
    ]
    completions = await asyncio.gather(*answers)
    return [
        art.TrajectoryGroup(
            art.Trajectory(messages_and_choices=[*messages, choice], reward=score(choice)) for choice in done.choices
        )
        for messages, done in zip(asked, completions, strict=True)
    ]


def score(choice):
    return SCORES.get(choice.message.content.strip(" .!").lower(), 0.0)


def reward(groups):
    return mean(trajectory.reward for group in groups for trajectory in group.trajectories)


def test_a_loop_of_sampling_and_training_learns_and_asks_no_other_host(lab):
    async def learn(backend, model):
        assert await model.get_step() == 0
        before = reward(await sample(model, 0))
        for seed in range(1, JOBS + 1):
            trained = await backend.train(model, await sample(model, seed), learning_rate=LEARNING_RATE)
            assert trained.step == seed
            assert trained.artifact_name == f"{model.entity}/acceptance/{model.name}:step{seed}"
        after = reward(await sample(model, 0))
        print(f"mean reward {before:.2f} -> {after:.2f} in {JOBS} jobs")
        assert after - before > 0.15
        assert reward(await sample(model, 0, step=0)) == pytest.approx(before, abs=0.05)  # checkpoint 0 is still there

    lab(learn)
    assert contacted == {"127.0.0.1"}


def test_metrics_of_a_job_arrive_under_the_names_of_the_backend(lab):
    async def train(backend, model):
        metrics = (await backend.train(model, await sample(model, 1), learning_rate=LEARNING_RATE)).metrics
        assert {"reward", "loss/train", "loss/entropy", "loss/grad_norm"} <= set(metrics)
        assert metrics["loss/learning_rate"] == LEARNING_RATE
        assert metrics["data/step_num_groups_submitted"] == len(PROMPTS)

    lab(train)


def test_a_job_in_which_nothing_can_train_ends_and_its_step_counts(lab):
    async def train(backend, model):
        groups = await sample(model, 1)
        for group in groups:
            for trajectory in group.trajectories:
                trajectory.reward = 1.0
        assert (await backend.train(model, groups)).step == 1
        assert (await backend.train(model, [])).step == 2

    lab(train)


def test_checkpoints_are_listed_and_all_but_the_newest_deleted(lab):
    async def train(backend, model):
        for seed in (1, 2):
            await backend.train(model, await sample(model, seed), learning_rate=LEARNING_RATE)
        assert await steps(backend, model) == [0, 1, 2]
        await model.delete_checkpoints()
        assert await steps(backend, model) == [2]
        assert await model.get_step() == 2
        assert await sample(model, 1)

    lab(train)


async def steps(backend, model):
    listed = backend._client.models.checkpoints.list(model_id=model.id, limit=1)  # one a page, to turn pages too
    return [checkpoint.step async for checkpoint in listed]


def test_a_model_is_found_again_by_its_name(lab, tmp_path):
    async def look(backend, model):
        again = trainable(tmp_path)
        await again.register(backend)
        assert (again.id, again.entity, again.run_id) == (model.id, model.entity, model.run_id)

    lab(look)


def test_a_deleted_model_is_gone_and_its_name_is_free(lab, tmp_path):
    async def delete(backend, model):
        await backend.train(model, await sample(model, 1), learning_rate=LEARNING_RATE)
        await backend.delete(model)
        with pytest.raises(NotFoundError):
            await model.get_step()
        with pytest.raises(NotFoundError):
            await sample(model, 1)
        again = trainable(tmp_path)
        await again.register(backend)
        assert again.id != model.id
        assert await again.get_step() == 0

    lab(delete)


def test_supervised_fine_tuning_by_the_serverless_client_of_the_backend(lab, served):
    """The data is uploaded to the service; the events are read as `ServerlessBackend._train_sft` does."""

    async def train(backend, model):
        client = backend._client
        answer = {"role": "assistant", "content": "maybe"}
        lines = [{"messages": [{"role": "user", "content": prompt}, answer]} for prompt in PROMPTS]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        files = f"{served.inference_base_url}/preview/files"
        headers = {"Authorization": f"Bearer {served.token}"}
        async with httpx.AsyncClient(headers=headers) as http:
            uploaded = (await http.post(files, content=text, timeout=60)).raise_for_status().json()
        assert uploaded["trainable"] == len(PROMPTS)
        before = reward(await sample(model, 0))
        job = await client.sft_training_jobs.create(
            model_id=model.id,
            training_data_url=uploaded["url"],
            config={"batch_size": 2, "learning_rate": LEARNING_RATE},
        )
        kinds, losses, after = [], [], NOT_GIVEN
        while "training_ended" not in kinds:
            async for event in client.sft_training_jobs.events.list(training_job_id=job.id, after=after, limit=2):
                assert event.type != "training_failed", event.data
                kinds.append(event.type)
                after = event.id
                if event.type == "training_started":
                    assert event.data["num_sequences"] == len(PROMPTS) / 2
                elif event.type == "gradient_step":
                    losses.append({name: float(value) for name, value in event.data.items()}["loss"])
        assert kinds.count("gradient_step") == len(PROMPTS) / 2
        assert losses[-1] < losses[0]
        assert await model.get_step() == 1
        assert reward(await sample(model, 0)) > before
        with pytest.raises(UnprocessableEntityError):
            await client.sft_training_jobs.create(
                model_id=model.id, training_data_url="wandb-artifact:///me/acceptance/data:v0"
            )

    lab(train)

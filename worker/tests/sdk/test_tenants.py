"""Several clients at once, and a server that is killed."""

from __future__ import annotations

import contextlib
import os
import random
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tinker
from conftest import TEXT, Server, text
from tinker import types

ADAM = types.AdamParams(learning_rate=5e-3, eps=1e-8)


def tenant(service: tinker.ServiceClient, seed: int, steps: int = 4) -> list[float]:
    """A small loop of reinforcement learning. Returns every value that it saw."""
    trainer = service.create_lora_training_client("tiny", rank=4, seed=seed).result()
    values: list[float] = []
    for step in range(steps):
        sampler = trainer.save_weights_and_get_sampling_client().result()
        params = types.SamplingParams(max_tokens=8, seed=100 * seed + step, stop=[])
        data = []
        for sequence in sampler.sample(text(TEXT), 4, params).result().sequences:
            tokens = TEXT + sequence.tokens
            reward = float(np.mean([token % 2 for token in sequence.tokens])) - 0.5
            prompt = len(TEXT) - 1
            inputs = {
                "target_tokens": tokens[1:],
                "logprobs": [0.0] * prompt + sequence.logprobs,
                "advantages": [0.0] * prompt + [reward] * len(sequence.tokens),
            }
            data.append(types.Datum(model_input=text(tokens[:-1]), loss_fn_inputs=inputs))
            values += [*map(float, sequence.tokens), *sequence.logprobs]
        future = trainer.forward_backward(data, "importance_sampling")
        stepped = trainer.optim_step(ADAM)
        values += [future.result().metrics["loss:sum"], stepped.result().metrics["grad_norm"]]
    return values


def test_two_tenants_get_the_numbers_that_each_gets_alone(server: Server):
    alone = [tenant(server.service(), seed) for seed in (1, 2)]
    assert alone[0] != alone[1]
    with ThreadPoolExecutor() as pool:
        together = list(pool.map(lambda seed: tenant(server.service(), seed), (1, 2)))
    assert together == alone


def datum(shift: int = 0) -> types.Datum:
    targets = [token + shift for token in TEXT[1:] + [50]]
    return types.Datum(model_input=text(TEXT), loss_fn_inputs={"target_tokens": targets, "weights": [1.0] * 8})


def step(trainer: tinker.TrainingClient) -> float:
    future = trainer.forward_backward([datum()], "cross_entropy")
    trainer.optim_step(ADAM).result()
    return future.result().metrics["loss:sum"]


def test_a_client_goes_on_after_the_server_was_killed(own_server: Server):
    service = own_server.service()
    trainer = service.create_lora_training_client("tiny", rank=4, seed=3).result()
    for _ in range(2):
        step(trainer)
    path = trainer.save_state("two").result().path
    sampler = trainer.save_weights_and_get_sampling_client().result()
    logprobs = sampler.compute_logprobs(text(TEXT)).result()
    expected = [step(trainer) for _ in range(3)]
    own_server.kill()
    own_server.start()

    # The session continues with new models from the saved states, and with the same samplers.
    resumed = service.create_training_client_from_state_with_optimizer(path).result()
    assert [step(resumed) for _ in range(3)] == expected
    assert sampler.compute_logprobs(text(TEXT)).result() == logprobs
    # What was trained and not saved is lost, which is said at once.
    with pytest.raises(tinker.RequestFailedError, match="create_training_client_from_state_with_optimizer"):
        step(trainer)
    # So does another process's session.
    other = own_server.service().create_training_client_from_state_with_optimizer(path).result()
    assert [step(other) for _ in range(3)] == expected


def test_a_client_whose_model_is_as_it_was_saved_goes_on_by_itself(own_server: Server):
    trainer = own_server.service().create_lora_training_client("tiny", rank=4, seed=3).result()
    step(trainer)
    path = trainer.save_state("one").result().path
    twin = own_server.service().create_training_client_from_state_with_optimizer(path).result()
    expected = [step(twin) for _ in range(3)]
    own_server.kill()
    own_server.start()
    assert [step(trainer) for _ in range(3)] == expected


@pytest.mark.skipif(sys.platform != "linux", reason="finds the worker in /proc")
def test_clients_go_on_after_the_worker_was_killed(own_server: Server):
    service = own_server.service()
    saved = service.create_lora_training_client("tiny", rank=4, seed=3).result()
    step(saved)
    path = saved.save_state("one").result().path
    twin = service.create_training_client_from_state_with_optimizer(path).result()
    expected = [step(twin) for _ in range(2)]
    sampler = saved.save_weights_and_get_sampling_client().result()
    params = types.SamplingParams(max_tokens=1500, seed=7, stop=[])
    sampled = sampler.sample(text(TEXT), 1, params).result().sequences[0].tokens
    future = sampler.sample(text(TEXT), 1, params)
    time.sleep(0.3)
    own_server.kill_worker()

    # A model that has not changed since it was saved continues, and the SDK repeats the request for a running sample.
    assert [step(saved) for _ in range(2)] == expected
    assert future.result().sequences[0].tokens == sampled
    # What was trained and not saved is lost, which is said.
    with pytest.raises(tinker.RequestFailedError, match="create_training_client_from_state_with_optimizer"):
        step(twin)


# The SDK waits up to 30 s between its attempts to reach a server that is gone, so each takes a while.
@pytest.mark.parametrize("seed", range(int(os.environ.get("HONE_KILLS", "1"))))
def test_killed_during_requests(own_server: Server, seed: int):
    """A kill at a random instant of training and saving: every answered save is complete, and there is nothing else."""
    service = own_server.service()
    trainer = service.create_lora_training_client("tiny", rank=4, seed=4).result()
    saved: list[tuple[str, float]] = []
    restarted = threading.Event()

    def train() -> None:
        """Trains until an operation fails. Continues after a kill between a save and the next step."""
        with contextlib.suppress(tinker.TinkerError):
            while not restarted.is_set():
                step(trainer)
                loss = trainer.forward([datum()], "cross_entropy").result().metrics["loss:sum"]
                saved.append((trainer.save_state(f"at-{len(saved)}").result().path, loss))

    worker = threading.Thread(target=train, daemon=True)
    worker.start()
    while not saved:
        time.sleep(0.01)
    time.sleep(random.Random(seed).uniform(0, 1.5))
    own_server.kill()
    own_server.start()
    restarted.set()
    worker.join(120)
    assert not worker.is_alive(), "an operation that died with the server fails in its client"
    listed = {c.tinker_path for c in own_server.rest().list_checkpoints(trainer.model_id).result().checkpoints}
    assert {path for path, _ in saved} <= listed
    for path in listed:
        resumed = own_server.service().create_training_client_from_state_with_optimizer(path).result()
        loss = resumed.forward([datum()], "cross_entropy").result().metrics["loss:sum"]
        assert loss == pytest.approx(dict(saved).get(path, loss), rel=1e-6)
    half_written = [p for p in (own_server.folder / "state").rglob("*") if "partial" in p.name or p.suffix == ".tmp"]
    assert half_written == []

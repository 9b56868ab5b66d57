"""Mistakes of a user are reported at once, as a sentence, and only to this user."""

from __future__ import annotations

import time

import numpy as np
import pytest
import tinker
from conftest import TEXT, Server, text
from tinker import types


def datum(**more) -> types.Datum:
    inputs = {"target_tokens": TEXT[1:] + [50], "weights": [1.0] * 8, **more}
    return types.Datum(model_input=text(TEXT), loss_fn_inputs={k: v for k, v in inputs.items() if v is not None})


def image() -> types.Datum:
    chunks = [types.EncodedTextChunk(tokens=TEXT), types.ImageChunk(data=b"\x89PNG", format="png", expected_tokens=1)]
    return types.Datum(
        model_input=types.ModelInput(chunks=chunks),
        loss_fn_inputs={"target_tokens": TEXT + [50], "weights": [1.0] * 9},
    )


NAN = types.TensorData.from_numpy(np.full(8, np.nan, np.float32))
MISTAKES = [
    ("unknown loss", lambda: [datum()], "pppo", None, "Did you mean ppo"),
    ("unknown setting", lambda: [datum()], "cross_entropy", {"beta": 1.0}, "no setting beta"),
    ("missing setting", lambda: [datum(weights=None, logprobs=[0.0] * 8, advantages=[0.0] * 8)], "dro", None, "beta"),
    ("extra input", lambda: [datum(advantages=[0.0] * 8)], "cross_entropy", None, "advantages"),
    ("missing input", lambda: [datum(weights=None, logprobs=[0.0] * 8)], "ppo", None, "no advantages"),
    ("shorter input", lambda: [datum(weights=[1.0] * 7)], "cross_entropy", None, r"weights has the shape \[7\]"),
    ("shorter targets", lambda: [datum(), datum(target_tokens=TEXT)] + [datum(target_tokens=TEXT[1:])], "cross_entropy", None, "datum 2: target_tokens"),
    ("unknown target", lambda: [datum(target_tokens=[5000] * 8)], "cross_entropy", None, "5000"),
    ("unknown token", lambda: [types.Datum(model_input=text([9999]), loss_fn_inputs={"target_tokens": [1], "weights": [1.0]})], "cross_entropy", None, "9999"),
    ("not a number", lambda: [datum(weights=NAN)], "cross_entropy", None, "nan|NaN"),
    ("an image", lambda: [image()], "cross_entropy", None, "reads only text"),
    ("not offered", lambda: [datum()], "stable_reinforce", None, "not published"),
    ("too long", lambda: [types.Datum(model_input=text([5] * 5000), loss_fn_inputs={"target_tokens": [5] * 5000, "weights": [1.0] * 5000})], "cross_entropy", None, "4096"),
]


@pytest.mark.parametrize("data, loss, config, words", [case[1:] for case in MISTAKES], ids=[case[0] for case in MISTAKES])
def test_mistakes_in_training(trainer: tinker.TrainingClient, data, loss: str, config, words: str):
    begin = time.monotonic()
    with pytest.raises(tinker.RequestFailedError, match=words) as raised:
        trainer.forward_backward(data(), loss, config).result()
    assert str(raised.value.category).endswith("user")
    assert time.monotonic() - begin < 10, "a mistake is not retried"
    assert trainer.optim_step(types.AdamParams()).result().metrics["grad_norm"] == 0
    assert trainer.forward_backward([datum()], "cross_entropy").result().metrics["loss:sum"] > 0


def test_weights_may_be_left_out(trainer: tinker.TrainingClient):
    ones = trainer.forward([datum()], "cross_entropy").result()
    none = trainer.forward([datum(weights=None)], "cross_entropy").result()
    assert none.metrics == ones.metrics


def test_optimizer_settings(trainer: tinker.TrainingClient):
    for adam in (
        types.AdamParams(learning_rate=float("nan")),
        types.AdamParams(learning_rate=-1.0),
        types.AdamParams(beta1=1.0),
        types.AdamParams(grad_clip_norm=-1.0),
    ):
        with pytest.raises(tinker.RequestFailedError, match="must be a number of at least 0"):
            trainer.optim_step(adam).result()
    with pytest.raises(tinker.RequestFailedError, match="dimuon"):
        trainer.optim_step(types.DimuonParams(learning_rate=0.1)).result()


def test_models(service: tinker.ServiceClient):
    with pytest.raises(tinker.BadRequestError, match="Did you mean tiny"):
        service.create_lora_training_client("tyny").result()
    with pytest.raises(tinker.BadRequestError, match="AdamW"):
        service.create_lora_training_client("tiny", optimizer=types.DimuonOptimizerConfig()).result()
    with pytest.raises(tinker.BadRequestError, match="does not serve the base model"):
        service.create_sampling_client(base_model="none").result()
    with pytest.raises(tinker.BadRequestError, match="no checkpoint"):
        service.create_sampling_client(model_path="tinker://nobody:train:0/weights/x").result()
    with pytest.raises(tinker.RequestFailedError, match="no checkpoint"):
        service.create_training_client_from_state("tinker://nobody:train:0/weights/x").result()


def test_mistakes_in_sampling(service: tinker.ServiceClient):
    base = service.create_sampling_client(base_model="tiny").result()
    cases = [
        (text([]), types.SamplingParams(max_tokens=1), "no tokens"),
        (text([70_000]), types.SamplingParams(max_tokens=1), "70000"),
        (text(TEXT), types.SamplingParams(max_tokens=5000), "4096"),
        (text(TEXT), types.SamplingParams(max_tokens=1, temperature=-1.0), "temperature"),
        (text(TEXT), types.SamplingParams(max_tokens=1, top_p=0.0), "top_p"),
        (text(TEXT), types.SamplingParams(max_tokens=1, seed=-1), "seed must be"),
        (text(TEXT), types.SamplingParams(max_tokens=1, stop=[70_000]), "token 70000 is not in the vocabulary"),
        (image().model_input, types.SamplingParams(max_tokens=1), "reads only text"),
    ]
    for prompt, params, words in cases:
        with pytest.raises(tinker.RequestFailedError, match=words):
            base.sample(prompt, 1, params).result()
    assert base.sample(text(TEXT), 1, types.SamplingParams(max_tokens=3)).result().sequences


def test_a_request_that_is_lost_in_the_client_does_not_hang_the_next(trainer: tinker.TrainingClient):
    """A token that no 32 bits hold fails after its sequence id was taken."""
    broken = types.Datum(model_input=text([2**31]), loss_fn_inputs={"target_tokens": [1], "weights": [1.0]})
    with pytest.raises(Exception):
        trainer.forward_backward([broken], "cross_entropy").result()
    begin = time.monotonic()
    assert trainer.forward([datum()], "cross_entropy").result().metrics["loss:sum"] > 0
    assert time.monotonic() - begin < 20


def test_a_custom_loss_that_fails_ends_its_client_alone(service: tinker.ServiceClient, trainer: tinker.TrainingClient):
    def broken(data, logprobs):
        raise ZeroDivisionError

    other = service.create_lora_training_client("tiny", rank=4, seed=2).result()
    with pytest.raises(ZeroDivisionError):
        trainer.forward_backward_custom([datum()], broken).result()
    with pytest.raises(RuntimeError, match="poisoned"):
        trainer.optim_step(types.AdamParams()).result()
    assert other.forward([datum()], "cross_entropy").result().metrics["loss:sum"] > 0


def test_keys(own_server: Server):
    own_server.stop()
    own_server.more = ("--api-key", "tml-right")
    own_server.start()
    right = tinker.ServiceClient(base_url=own_server.url, api_key="tml-right")
    assert right.create_sampling_client(base_model="tiny").result()
    with pytest.raises(tinker.AuthenticationError):
        tinker.ServiceClient(base_url=own_server.url, api_key="tml-wrong").create_sampling_client(base_model="tiny").result()

"""Images as the SDK sends them, against plain transformers: prompts, training data, and what is refused."""

from __future__ import annotations

import base64
import os
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import tinker
import torch
from hone_worker.models.model import LanguageModel, load_model
from tiny_vision_models import picture, plain_logprobs, reference, sequence
from tinker import types

BEFORE, AFTER = [40, 41, 42], [43, 44, 45, 46]
FOLDER = Path(os.environ["HONE_MODEL"])
PNG, JPEG = picture(1), picture(2, 44, 17, "JPEG")


@cache
def model() -> LanguageModel:
    return load_model(str(FOLDER), "tiny", cache_dir=FOLDER, device="cpu", dtype="float32")


@cache
def plain_model() -> torch.nn.Module:
    return reference(FOLDER)


def plain(file: bytes, *more: int) -> tuple[list[int], torch.Tensor]:
    """Tokens of an input with one image and `more` at its end, and `[L, V]` of what follows each."""
    image = model().vision.read(str(hash(file)), file)
    whole = sequence(BEFORE, image, [*AFTER, *more])
    return whole.ids, plain_logprobs(plain_model(), model().vision, whole).detach()


def count(file: bytes) -> int:
    return len(plain(file)[0]) - len(BEFORE) - len(AFTER)


def with_image(chunk: types.ModelInputChunk) -> types.ModelInput:
    text = types.EncodedTextChunk
    return types.ModelInput(chunks=[text(tokens=BEFORE), chunk, text(tokens=AFTER)])


def png(**more) -> types.ImageChunk:
    return types.ImageChunk(data=PNG, format="png", **more)


def pointer(file: bytes, form: str, location: str | None = None) -> types.ImageAssetPointerChunk:
    url = f"data:image/{form};base64,{base64.b64encode(file).decode()}"
    return types.ImageAssetPointerChunk(format=form, location=location or url, expected_tokens=count(file))


@pytest.fixture(scope="session")
def sampler(service: tinker.ServiceClient) -> tinker.SamplingClient:
    return service.create_sampling_client(base_model="tiny")


PARAMS = types.SamplingParams(max_tokens=6, seed=1, stop=[])


def test_samples(sampler: tinker.SamplingClient):
    chunks = [png(), png(expected_tokens=count(PNG)), pointer(PNG, "png"), pointer(JPEG, "jpeg")]
    answers = [sampler.sample(with_image(chunk), 2, PARAMS).result() for chunk in chunks]
    tokens = [[sequence.tokens for sequence in answer.sequences] for answer in answers]
    assert tokens[0] == tokens[1] == tokens[2] != tokens[3]
    for file, answer in zip([PNG, PNG, PNG, JPEG], answers, strict=True):
        for sampled in answer.sequences:
            _, expected = plain(file, *sampled.tokens)
            own = expected[-len(sampled.tokens) - 1 : -1].gather(1, torch.tensor(sampled.tokens)[:, None])[:, 0]
            np.testing.assert_allclose(sampled.logprobs, own, atol=1e-4)


def test_prompt_logprobs(sampler: tinker.SamplingClient):
    ids, expected = plain(PNG)
    own = expected[:-1].gather(1, torch.tensor(ids)[1:, None])[:, 0]
    found = sampler.compute_logprobs(with_image(png(expected_tokens=count(PNG)))).result()
    np.testing.assert_allclose(found[1:], own, atol=1e-4)


def test_training(trainer: tinker.TrainingClient):
    ids, expected = plain(PNG)
    size = count(PNG)
    # As recipes have it: nothing is predicted within the image.
    targets = [*BEFORE[1:], *[0] * (size + 1), *AFTER[1:], 50]
    weights = [1.0] * 2 + [0.0] * (size + 1) + [1.0] * len(AFTER)
    inputs = {"target_tokens": targets, "weights": weights}
    image = types.Datum(model_input=with_image(png(expected_tokens=size)), loss_fn_inputs=inputs)
    only = {"target_tokens": [42, 43, 44, 45], "weights": [1.0] * 4}
    text = types.Datum(model_input=types.ModelInput.from_ints([41, 42, 43, 44]), loss_fn_inputs=only)
    before = trainer.forward_backward([image, text], "cross_entropy").result()
    own = expected.gather(1, torch.tensor(targets)[:, None])[:, 0]
    np.testing.assert_allclose(before.loss_fn_outputs[0]["logprobs"].to_numpy(), own, atol=1e-4)
    step = trainer.optim_step(types.AdamParams(learning_rate=1e-2)).result()
    assert step.metrics["grad_norm"] > 0.1
    after = trainer.forward([image, text], "cross_entropy").result()
    assert after.metrics["loss:sum"] < before.metrics["loss:sum"] - 0.5


@pytest.mark.parametrize(
    "chunk, sentence",
    [
        (lambda: png(expected_tokens=count(PNG) + 1), "chunk 1: expected_tokens is .*, but this image has"),
        (lambda: types.ImageChunk(data=PNG, format="jpeg"), "format is jpeg, but the image is image/png"),
        (lambda: types.ImageChunk(data=PNG[:-30], format="png"), "chunk 1: the image is broken: it is cut off"),
        (lambda: types.ImageChunk(data=PNG[:60] + b"\0" * 20 + PNG[80:], format="png"), "chunk 1: .*image"),
        (lambda: pointer(PNG, "png", "/etc/hostname"), "location must be a data URL or an http"),
    ],
)
def test_refusals(sampler: tinker.SamplingClient, trainer: tinker.TrainingClient, chunk, sentence: str):
    with pytest.raises(tinker.TinkerError, match=sentence):
        sampler.sample(with_image(chunk()), 1, PARAMS).result()
    if isinstance(chunk(), types.ImageAssetPointerChunk):
        return  # The SDK itself sends no pointers in training data.
    given = types.Datum(model_input=with_image(chunk()), loss_fn_inputs={"target_tokens": [1], "weights": [1.0]})
    with pytest.raises(tinker.TinkerError, match=sentence):
        trainer.forward([given], "cross_entropy").result()

"""Training: every loss, the optimizer, and how calls add up; against autograd and torch's AdamW."""

from __future__ import annotations

import numpy as np
import pytest
import tinker
import torch
from conftest import TEXT, Server, text
from reference import Reference
from tinker import types

CLOSE = {"rtol": 2e-4, "atol": 2e-4}


def made_up(name: str, seed: int = 0, count: int = 3) -> list[types.Datum]:
    """Datums of several lengths; two share their beginning, some targets are not the next token."""
    random = np.random.default_rng(seed)
    data = []
    for index in range(count):
        tokens = TEXT[:4] + random.integers(3, 250, 3 + 2 * index).tolist()
        size = len(tokens) - 1
        targets = np.array(tokens[1:])
        if index == 1:
            targets[1] = 77
        numbers = {
            "weights": random.normal(size=size),
            "logprobs": -random.uniform(0.5, 6, size),
            "advantages": random.normal(size=size),
            "sequence_ratio_mask": np.array([0.0] * 3 + [1.0] * (size - 3)),
        }
        numbers["advantages"][:3] = 0
        wanted = {
            "cross_entropy": ["weights"],
            "gspo": ["logprobs", "advantages", "sequence_ratio_mask"],
        }.get(name, ["logprobs", "advantages"])
        inputs = {key: types.TensorData.from_numpy(numbers[key].astype(np.float32)) for key in wanted}
        inputs["target_tokens"] = types.TensorData.from_numpy(targets.astype(np.int64))
        data.append(types.Datum(model_input=text(tokens[:-1]), loss_fn_inputs=inputs))
    return data


def near(data: list[types.Datum], reference: Reference) -> list[types.Datum]:
    """With the sampler's log-probabilities close to the model's, so that ratios lie on both sides of the clip."""
    random = np.random.default_rng(9)
    for datum in data:
        own = reference.logprobs(datum).detach().numpy()
        noise = random.normal(scale=0.3, size=own.shape)
        datum.loss_fn_inputs["logprobs"] = types.TensorData.from_numpy((own + noise).astype(np.float32))
    return data


@pytest.mark.parametrize(
    "name, config",
    [
        ("cross_entropy", {}),
        ("importance_sampling", {}),
        ("ppo", {}),
        ("ppo", {"clip_low_threshold": 0.9, "clip_high_threshold": 1.1}),
        ("cispo", {}),
        ("cispo", {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}),
        ("dro", {"beta": 0.05}),
        ("gspo", {}),
        ("gspo", {"clip_low_threshold": 0.99, "clip_high_threshold": 1.01}),
    ],
)
def test_losses(trainer: tinker.TrainingClient, reference: Reference, name: str, config: dict[str, float]):
    data = made_up(name)
    if name != "cross_entropy":
        data = near(data, reference)
    expected = reference.loss(data, name, config)
    given = config or None
    forward = trainer.forward(data, name, given).result()
    result = trainer.forward_backward(data, name, given).result()
    for found in (forward, result):
        assert found.metrics["loss:sum"] == pytest.approx(float(expected), rel=2e-4, abs=2e-4)
        for output, datum in zip(found.loss_fn_outputs, data, strict=True):
            own = reference.logprobs(datum).detach().numpy()
            np.testing.assert_allclose(output["logprobs"].to_numpy(), own, **CLOSE)
    expected.backward()
    adam = types.AdamParams(learning_rate=3e-3, weight_decay=0.01, grad_clip_norm=1.0)
    step = trainer.optim_step(adam).result()
    assert step.metrics["grad_norm"] == pytest.approx(reference.step(adam), rel=1e-3)
    after = trainer.forward(data, name, given).result()
    moved = 0.0
    for output, before, datum in zip(after.loss_fn_outputs, result.loss_fn_outputs, data, strict=True):
        own = reference.logprobs(datum).detach().numpy()
        np.testing.assert_allclose(output["logprobs"].to_numpy(), own, rtol=2e-3, atol=2e-3)
        moved = max(moved, float(np.abs(own - before["logprobs"].to_numpy()).max()))
    assert moved > 0.02, "the step must be seen"


def test_adam_over_steps(trainer: tinker.TrainingClient, reference: Reference):
    """Settings that change from step to step, a step without a gradient, and gradients over several calls."""
    data = made_up("cross_entropy", seed=3)
    settings = [
        types.AdamParams(learning_rate=1e-3, eps=1e-8),
        types.AdamParams(learning_rate=2e-3, beta1=0.8, beta2=0.99, eps=1e-8, weight_decay=0.1),
        types.AdamParams(learning_rate=1e-3, eps=1e-8, grad_clip_norm=0.5),
    ]
    for index, adam in enumerate(settings):
        parts = [data] if index == 0 else [data[:1], data[1:]]
        futures = [trainer.forward_backward(part, "cross_entropy") for part in parts]
        stepped = trainer.optim_step(adam)
        losses = sum(future.result().metrics["loss:sum"] for future in futures)
        loss = reference.loss(data, "cross_entropy", {})
        assert losses == pytest.approx(float(loss), rel=1e-3)
        loss.backward()
        assert stepped.result().metrics["grad_norm"] == pytest.approx(reference.step(adam), rel=2e-3)
    empty = types.AdamParams(learning_rate=1e-3, eps=1e-8)
    assert trainer.optim_step(empty).result().metrics["grad_norm"] == 0
    reference.step(empty)
    for output, datum in zip(trainer.forward(data, "cross_entropy").result().loss_fn_outputs, data, strict=True):
        own = reference.logprobs(datum).detach().numpy()
        np.testing.assert_allclose(output["logprobs"].to_numpy(), own, rtol=5e-3, atol=5e-3)


@pytest.mark.parametrize("sparse", [False, True])
def test_several_targets(trainer: tinker.TrainingClient, reference: Reference, sparse: bool):
    tokens = TEXT[:5]
    weights = torch.zeros(5, 3)
    weights[1, 0], weights[3, 2], weights[4, 1] = 0.5, -1.0, 2.0
    targets = torch.randint(3, 250, (5, 3), generator=torch.Generator().manual_seed(0))
    targets[weights == 0] = 0
    inputs = {"target_tokens": targets, "weights": weights}
    if not sparse:
        inputs = {key: types.TensorData.from_numpy(value.numpy()) for key, value in inputs.items()}
    datum = types.Datum(model_input=text(tokens), loss_fn_inputs=inputs)
    own = reference.all_logprobs(tokens).gather(1, targets)
    result = trainer.forward_backward([datum], "cross_entropy").result()
    assert result.metrics["loss:sum"] == pytest.approx(float(-(own * weights).sum()), rel=1e-4)
    np.testing.assert_allclose(result.loss_fn_outputs[0]["logprobs"].to_numpy(), own.detach().numpy(), **CLOSE)
    (-(own * weights).sum()).backward()
    norm = trainer.optim_step(types.AdamParams()).result().metrics["grad_norm"]
    assert norm == pytest.approx(reference.gradient_norm(), rel=1e-3)


def test_custom_loss(trainer: tinker.TrainingClient, reference: Reference):
    data = made_up("cross_entropy", seed=5)

    def squares(data: list[types.Datum], logprobs: list[torch.Tensor]):
        loss = sum((value**2).sum() for value in logprobs) / 7
        return loss, {"squares": float(loss)}

    future = trainer.forward_backward_custom(data, squares)
    step = trainer.optim_step(types.AdamParams(learning_rate=1e-3))
    expected = sum((reference.logprobs(datum) ** 2).sum() for datum in data) / 7
    result = future.result()
    assert result.metrics["loss:sum"] == pytest.approx(float(expected), rel=1e-3)
    assert result.metrics["squares"] == pytest.approx(float(expected), rel=1e-3)
    expected.backward()
    assert step.result().metrics["grad_norm"] == pytest.approx(reference.gradient_norm(), rel=1e-3)


def test_traced_custom_loss_runs_in_the_client(service: tinker.ServiceClient, trainer: tinker.TrainingClient):
    def weighted(logprobs, weights):
        loss = -(logprobs * weights).sum()
        return loss, {"custom/weighted:sum": loss}

    data = made_up("cross_entropy", seed=6)
    handle = service.create_custom_loss(weighted, {"logprobs": 1, "weights": 1}).result()
    custom = trainer.forward_backward_custom(data, handle).result().metrics
    plain = trainer.forward(data, "cross_entropy").result().metrics
    assert custom["loss:sum"] == pytest.approx(plain["loss:sum"], rel=1e-5)


def test_large_calls_are_cut_by_the_client_and_put_together(trainer: tinker.TrainingClient):
    """More datums than one request holds: the parts arrive in any order."""
    data = [datum for datum in made_up("cross_entropy", count=1)] * 1030
    future = trainer.forward_backward(data, "cross_entropy")
    step = trainer.optim_step(types.AdamParams(learning_rate=0.0))
    one = trainer.forward(data[:1], "cross_entropy").result()
    result = future.result()
    assert len(result.loss_fn_outputs) == 1030
    assert result.metrics["loss:sum"] == pytest.approx(1030 * one.metrics["loss:sum"], rel=1e-4)
    trainer.forward_backward(data[:1], "cross_entropy").result()
    single = trainer.optim_step(types.AdamParams(learning_rate=0.0)).result().metrics["grad_norm"]
    assert step.result().metrics["grad_norm"] == pytest.approx(1030 * single, rel=1e-3)


def test_it_learns(service: tinker.ServiceClient):
    trainer = service.create_lora_training_client("tiny", rank=8, seed=1, train_unembed=False).result()
    tokens = [60, 61, 62, 63, 64, 65]
    inputs = {"target_tokens": tokens[1:], "weights": [1.0] * 5}
    datum = types.Datum(model_input=text(tokens[:-1]), loss_fn_inputs=inputs)
    losses = []
    for _ in range(25):
        future = trainer.forward_backward([datum], "cross_entropy")
        trainer.optim_step(types.AdamParams(learning_rate=2e-2))
        losses.append(future.result().metrics["loss:sum"])
    assert losses[-1] < 0.1 * losses[0]
    sampler = trainer.save_weights_and_get_sampling_client().result()
    params = types.SamplingParams(max_tokens=5, temperature=0)
    assert sampler.sample(text(tokens[:1]), 1, params).result().sequences[0].tokens == tokens[1:]


def test_information(service: tinker.ServiceClient, trainer: tinker.TrainingClient, server: Server):
    info = trainer.get_info()
    assert (info.model_data.model_name, info.lora_rank, info.is_lora) == ("tiny", 4, True)
    assert trainer.get_tokenizer().decode([40, 41]) == trainer.get_tokenizer().decode([40]) + trainer.get_tokenizer().decode([41])
    models = server.rest().get_server_capabilities().result().supported_models
    assert [(model.model_name, model.trainable, model.sampleable) for model in models] == [("tiny", True, True)]
    assert models[0].max_context_length == 4096


def test_targets_of_the_adapter(service: tinker.ServiceClient, server: Server):
    """A fresh model is the base model, and only what is asked for is trained."""
    base = service.create_sampling_client(base_model="tiny").result()
    expected = base.compute_logprobs(text(TEXT)).result()
    rest = server.rest()
    for flags, modules in (
        ({"train_mlp": False, "train_unembed": False}, {"q_proj", "k_proj", "v_proj", "o_proj"}),
        ({"train_attn": False, "train_unembed": False}, {"gate_proj", "up_proj", "down_proj"}),
        ({"train_attn": False, "train_mlp": False}, {"lm_head"}),
    ):
        trainer = service.create_lora_training_client("tiny", rank=2, seed=5, **flags).result()
        sampler = trainer.save_weights_and_get_sampling_client().result()
        np.testing.assert_allclose(sampler.compute_logprobs(text(TEXT)).result()[1:], expected[1:], atol=1e-4)
        reference = Reference.of(trainer, rest, "x")
        names = {name.split(".lora_")[0].split(".")[-1] for name, p in reference.model.named_parameters() if p.requires_grad}
        assert names == modules
        path = trainer.save_state("flags").result().path
        info = rest.get_weights_info_by_tinker_path(path).result()
        assert info.train_attn is flags.get("train_attn", True)
        assert info.train_mlp is flags.get("train_mlp", True)
        assert info.train_unembed is flags.get("train_unembed", True)

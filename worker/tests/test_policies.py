"""Adapters and full weights: what training changes, what it leaves alone, and what the files say to other
tools."""

import json
from dataclasses import replace

import numpy as np
import peft
import pytest
import torch
from hone_worker.errors import UserMistake
from hone_worker.policies.adamw import AdamSettings
from hone_worker.policies.registry import Policies
from hone_worker.training.trainer import Trainer
from models import build, load, reference, reference_outputs, sample_sequences, weighing
from transformers import AutoModelForCausalLM

ADAM = AdamSettings(1e-2, 0.9, 0.99, 1e-8, 0.01, 1.0)
ALL = ("attn", "mlp", "unembed")
SEQUENCES = sample_sequences()


def lora(targets=("attn", "mlp"), rank=3, seed=0) -> dict:
    return {"kind": "lora", "rank": rank, "alpha": 6, "targets": list(targets), "seed": seed}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return build("llama", tmp_path_factory.mktemp("models"))


@pytest.fixture
def policies(folder):
    return Policies(load(folder))


def make(policies, adapter):
    return policies[policies.create(adapter)]


def logprobs(policy) -> torch.Tensor:
    return Trainer().forward(policy, SEQUENCES, ["logprobs"])["logprobs"]


def sampled(policy) -> torch.Tensor:
    """What sampling would see: the log-probabilities under the published weights."""
    current, policy.use_current = policy.use_current, policy.use_published
    try:
        return logprobs(policy)
    finally:
        policy.use_current = current


WEIGHT = torch.linspace(-1, 1, int(SEQUENCES.starts[-1]))


def backward(policy, exchange=None, trainer=None) -> None:
    exchange = exchange or weighing(SEQUENCES, {"logprobs": WEIGHT})
    (trainer or Trainer()).forward_backward(policy, SEQUENCES, ["logprobs"], exchange)


def shake(policy) -> None:
    """Moves the adapter away from its beginning, where B is zero."""
    generator = torch.Generator().manual_seed(7)
    for _, parameter in sorted(policy.named(policy.parameters).items()):
        parameter.add_(torch.randn(parameter.shape, generator=generator).to(parameter.device) * 0.1)
    policy.revision += 1
    policy.publish()


def same(a: torch.Tensor, b: torch.Tensor, tolerance: float = 1e-5) -> bool:
    return bool((a.cpu() - b.cpu()).abs().max() < tolerance)


def test_a_fresh_adapter_is_the_base_and_its_seed_decides_it(policies):
    base = logprobs(make(policies, {"kind": "none"}))
    first, again, other = (make(policies, lora(ALL, seed=seed)) for seed in (1, 1, 2))
    assert same(logprobs(first), base)
    assert torch.equal(first.parameters[0], again.parameters[0])
    assert not torch.equal(first.parameters[0], other.parameters[0])
    assert first.trainable_parameters == sum(p.numel() for p in first.parameters)


@pytest.mark.parametrize(
    "kind,targets",
    [
        ("llama", ["attn"]),
        ("llama", ["attn", "mlp"]),
        ("llama", ["unembed"]),
        ("llama", list(ALL)),
        ("qwen2", ["mlp", "attn"]),
        ("gpt_neox", ["attn", "mlp"]),
        ("gpt2", ["attn"]),
        ("gpt2", list(ALL)),
        ("phi3", list(ALL)),
        ("bloom", ["attn", "mlp"]),
    ],
)
def test_numbers_equal_peft_with_the_exported_adapter(kind, targets, tmp_path):
    path = build(kind, tmp_path)
    policy = make(Policies(load(path)), lora(targets))
    shake(policy)
    policy.export(tmp_path / "adapter", "adapter")
    theirs = peft.PeftModel.from_pretrained(reference(path), tmp_path / "adapter", is_trainable=True)
    expected = reference_outputs(theirs, SEQUENCES)["logprobs"]
    assert same(logprobs(policy), expected.detach(), 2e-5)
    backward(policy)
    (WEIGHT * expected).sum().backward()
    found = policy.named([parameter.grad for parameter in policy.parameters])
    gradients = {name: p.grad for name, p in theirs.named_parameters() if p.requires_grad}
    assert len(gradients) == len(found)
    for name, gradient in found.items():
        expected_gradient = gradients[f"base_model.model.{name.removesuffix('.weight')}.default.weight"]
        assert same(
            gradient / expected_gradient.abs().max(), expected_gradient / expected_gradient.abs().max()
        ), name


def test_gradient_checkpointing_changes_no_number(folder):
    gradients = []
    for checkpointing in (False, True):
        policy = make(Policies(load(folder, gradient_checkpointing=checkpointing)), lora(ALL))
        shake(policy)
        backward(policy)
        gradients.append(policy.named([p.grad for p in policy.parameters]))
    assert all(same(gradients[0][name], gradients[1][name]) for name in gradients[0])


def test_policies_over_one_base_do_not_touch_each_other(policies):
    base, first, second = (
        make(policies, {"kind": "none"}),
        make(policies, lora()),
        make(policies, lora(ALL, rank=2, seed=5)),
    )
    shake(first), shake(second)
    before = [logprobs(p) for p in (base, first, second)]
    assert not same(before[0], before[1], 1e-3) and not same(before[1], before[2], 1e-3)
    backward(first)
    logprobs(second)  # switches the merged weights between a backward and its step
    assert all(bool((p.grad == 0).all()) for p in second.parameters)
    first.optim_step(ADAM)
    after = [logprobs(p) for p in (base, first, second)]
    assert torch.equal(before[0], after[0]) and torch.equal(before[2], after[2])
    assert not same(before[1], after[1], 1e-3)


def test_a_sample_between_forward_and_backward_does_not_change_the_gradient(policies):
    policy, other = make(policies, lora()), make(policies, lora(seed=3))
    shake(policy), shake(other)
    backward(policy)
    expected = [p.grad.clone() for p in policy.parameters]
    policy.zero_grad()

    def exchange(indices, outputs):
        sampled(other)
        return weighing(SEQUENCES, {"logprobs": WEIGHT})(indices, outputs)

    backward(policy, exchange)
    assert all(torch.equal(a, p.grad) for a, p in zip(expected, policy.parameters))


def test_sampling_sees_the_published_weights_alone(policies):
    policy = make(policies, lora())
    old = sampled(policy)
    for _ in range(2):
        backward(policy)
        assert policy.optim_step(ADAM).applied
    assert torch.equal(sampled(policy), old) and not same(logprobs(policy), old, 1e-4)
    new = logprobs(policy)
    assert policy.publish() == policy.version == 1
    merged = [overlay.merged for overlay in policy.overlays]
    assert torch.equal(sampled(policy), new)
    assert all(a is overlay.merged for a, overlay in zip(merged, policy.overlays)), (
        "publishing merged a second time"
    )


@pytest.mark.parametrize(
    "adapter,dtype",
    [
        (lora(), "float32"),
        (lora(ALL), "bfloat16"),
        ({"kind": "full"}, "float32"),
        ({"kind": "full"}, "bfloat16"),
    ],
)
def test_saved_state_goes_on_bit_for_bit(adapter, dtype, folder, tmp_path):
    def steps(policy, number):
        for _ in range(number):
            backward(policy)
            policy.optim_step(ADAM)
        policy.publish()

    policy = make(Policies(load(folder, dtype=dtype)), adapter)
    steps(policy, 2)
    policy.save_state(tmp_path / "state")
    with pytest.raises(UserMistake, match="exists"):
        policy.save_state(tmp_path / "state")
    saved = logprobs(policy)
    steps(policy, 2)
    resumed = make(Policies(load(folder, dtype=dtype)), adapter)
    backward(resumed)  # a gradient that loading must drop
    resumed.load_state(tmp_path / "state", optimizer=True)
    assert (
        resumed.version == 1
        and torch.equal(logprobs(resumed), saved)
        and torch.equal(sampled(resumed), saved)
    )
    steps(resumed, 2)
    assert all(torch.equal(a, b) for a, b in zip(policy.parameters, resumed.parameters))
    without = make(Policies(load(folder, dtype=dtype)), adapter)
    without.load_state(tmp_path / "state", optimizer=False)
    assert torch.equal(logprobs(without), saved) and not without.optimizer.begun
    assert {f.name for f in (tmp_path / "state").iterdir()} == {
        "policy.json",
        "weights.safetensors",
        "optimizer.safetensors",
    }
    if adapter["kind"] == "lora":
        with pytest.raises(UserMistake, match="another adapter"):
            make(Policies(load(folder)), lora(rank=9)).load_state(tmp_path / "state", optimizer=True)


@pytest.mark.parametrize(
    "kind,adapter",
    [
        ("llama", lora()),
        ("llama", lora(ALL)),
        ("gpt2", lora(ALL)),
        ("mixtral", lora()),
        ("llama", {"kind": "full"}),
        ("llama", {"kind": "none"}),
    ],
)
def test_merged_export_loads_in_plain_transformers(kind, adapter, tmp_path):
    path = build(kind, tmp_path)
    (path / "tokenizer.json").write_text("{}")
    policy = make(Policies(load(path)), adapter)
    if adapter["kind"] == "lora":
        shake(policy)
    elif adapter["kind"] == "full":
        backward(policy)
        policy.optim_step(ADAM)
    policy.export(tmp_path / "merged", "merged")
    (tmp_path / "merged" / "tokenizer.json").unlink()
    plain, report = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    assert same(reference_outputs(plain, SEQUENCES)["logprobs"].detach(), logprobs(policy), 2e-5)
    assert json.loads((tmp_path / "merged" / "config.json").read_text())["dtype"] == "float32"


@pytest.mark.parametrize("adapter", [lora(), {"kind": "full"}])
def test_a_gradient_that_is_not_finite_is_dropped(adapter, policies):
    policy = make(policies, adapter)
    before = [p.clone() for p in policy.parameters]
    backward(policy, lambda _, outputs: {"logprobs": torch.full_like(outputs["logprobs"], torch.nan)})
    step = policy.optim_step(ADAM)
    assert step.grad_norm != step.grad_norm and not step.applied and policy.optimizer.steps == 0
    assert all(torch.equal(a, b) and not b.grad.any() for a, b in zip(before, policy.parameters))


@pytest.mark.parametrize("targets", [("attn", "mlp"), ALL])
def test_a_policy_without_merged_weights_has_the_same_outputs_and_gradients(targets, policies, folder, tmp_path):
    apart = Policies(load(folder))
    apart._source = replace(apart._source, merges_adapters=False)
    apart._base.source = apart._source
    one, other = make(policies, lora(targets)), make(apart, lora(targets))
    for policy in (one, other):
        shake(policy)
        backward(policy)
    assert other.overlays[0].merged is None and one.overlays[0].merged is not None
    assert same(logprobs(other), logprobs(one), 1e-4)
    assert all(same(a.grad, b.grad, 1e-3) for a, b in zip(other.parameters, one.parameters, strict=True))
    step = other.optim_step(ADAM)
    assert step.applied and not other.sample(lambda *_: pytest.fail("nothing is rounded"))
    assert same(sampled(other), logprobs(one), 1e-4)  # until the next publish


def test_adamw_equals_torch(policies):
    policy = make(policies, lora())
    theirs = [torch.nn.Parameter(p.clone()) for p in policy.parameters]
    optimizer = torch.optim.AdamW(
        theirs, lr=ADAM.learning_rate, betas=(0.9, 0.99), eps=ADAM.eps, weight_decay=0.01
    )
    for _ in range(3):
        backward(policy)
        for mine, other in zip(policy.parameters, theirs):
            other.grad = mine.grad.clone()
        norm = torch.nn.utils.clip_grad_norm_(theirs, ADAM.max_grad_norm)
        assert norm > 1 and abs(policy.optim_step(ADAM).grad_norm - float(norm)) < 1e-4 * norm
        optimizer.step()
        assert all(same(a, b.detach(), 1e-6) for a, b in zip(policy.parameters, theirs))


def test_full_weights_keep_the_reference_apart_and_have_no_frozen_sampler(policies):
    full = make(policies, {"kind": "full"})
    base = make(policies, {"kind": "none"})
    assert base.model is not full.model
    before = logprobs(base)
    assert same(logprobs(full), before)
    backward(full)
    full.optim_step(ADAM)
    with pytest.raises(UserMistake, match="publish"):
        full.use_published()
    full.publish()
    assert torch.equal(logprobs(base), before) and not same(sampled(full), before, 1e-3)
    with pytest.raises(UserMistake, match="no adapter"):
        full.export(base.model.directory / "x", "adapter")
    with pytest.raises(UserMistake, match="nothing to train"):
        backward(base)


@pytest.mark.parametrize("fails_in", ["forward", "backward"])
def test_out_of_memory_halves_micro_batches_and_counts_nothing_twice(fails_in, policies, monkeypatch):
    policy = make(policies, lora())
    shake(policy)
    answer = weighing(SEQUENCES, {"logprobs": WEIGHT})
    backward(policy, answer)
    expected = [p.grad.clone() for p in policy.parameters]
    policy.zero_grad()
    trainer, seen, calls = Trainer(micro_batch_tokens=24), [], []

    def failing(inner):
        def run(*arguments, **options):
            result = inner(*arguments, **options)
            calls.append(1)
            if len(calls) == 2:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
            return result

        return run

    from hone_worker.training import trainer as training

    if fails_in == "forward":
        monkeypatch.setattr(training, "token_outputs", failing(training.token_outputs))
    else:  # after gradients were added: they must be taken back
        policy.backs_up = True
        monkeypatch.setattr(torch.autograd, "backward", failing(torch.autograd.backward))

    def exchange(indices, outputs):
        seen.append(list(indices))
        return answer(indices, outputs)

    backward(policy, exchange, trainer)
    assert trainer.counters["train/out_of_memory"] == 1
    assert all(same(a, p.grad, 1e-4) for a, p in zip(expected, policy.parameters))
    counted = seen if fails_in == "forward" else [seen[0], *seen[2:]]
    assert sorted(s for indices in counted for s in indices) == np.diff(SEQUENCES.starts).nonzero()[0].tolist()
    assert len(counted) == 3


def test_a_backward_that_cannot_be_undone_is_told(policies, monkeypatch):
    policy = make(policies, {"kind": "full"})
    backward(policy)

    def fail(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch.Tensor, "backward", fail)
    with pytest.raises(UserMistake, match="dropped"):
        backward(policy)
    assert not any(parameter.grad.any() for parameter in policy.parameters)


def test_a_failing_loss_leaves_a_usable_worker(policies):
    policy = make(policies, lora())
    expected = logprobs(policy)

    def exchange(_, outputs):
        raise RuntimeError("the loss threw")

    with pytest.raises(RuntimeError, match="the loss threw"):
        backward(policy, exchange)
    assert torch.equal(logprobs(policy), expected)

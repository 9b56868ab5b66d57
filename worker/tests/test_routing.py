"""Mixtures of experts: the router in float32, replay of its choice, and transformers' auxiliary loss."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from families.text import TEXT, build
from hone_worker.errors import UserMistake
from hone_worker.models.model import LanguageModel, load_model
from hone_worker.policies.registry import Policies
from hone_worker.training.trainer import Trainer
from models import sample_sequences, sequences_of, weighing
from transformers import AutoModelForCausalLM

torch.set_num_threads(1)
SEQUENCES = sample_sequences()
COUNT = int(SEQUENCES.starts[-1])
LORA = {"kind": "lora", "rank": 2, "alpha": 4, "targets": ["attn"], "seed": 1}


def load(tmp_path: Path, kind: str, **options) -> LanguageModel:
    folder = build(next(family for family in TEXT if family.kind == kind), tmp_path)
    return load_model(str(folder), "tiny", cache_dir=tmp_path, device="cpu", **{"dtype": "float32", **options})


def trained(model: LanguageModel):
    policies = Policies(model)
    return policies[policies.create(LORA)]


def logprobs(trainer: Trainer, policy) -> torch.Tensor:
    return trainer.forward(policy, SEQUENCES, ["logprobs"])["logprobs"]


@pytest.mark.parametrize("kind", ["qwen3_moe", "deepseek_v3", "gpt_oss"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_replay_keeps_the_choice_until_a_publish(tmp_path, kind, checkpointing):
    model = load(tmp_path, kind, gradient_checkpointing=checkpointing)
    policy = trained(model)
    replaying, plain = Trainer(router_replay="R2"), Trainer(micro_batch_tokens=30)
    before = logprobs(replaying, policy)
    assert torch.equal(before, logprobs(Trainer(), policy))
    for name, weight in model.module.named_parameters():
        if name.endswith(("gate.weight", "router.weight")):
            weight.copy_(torch.randn_like(weight) * 30)  # other experts
    moved = logprobs(plain, policy)
    held = logprobs(replaying, policy)
    assert not torch.allclose(moved, held, atol=1e-3)
    gradients = []
    for tokens in (0, 25):  # in other rows, too
        replaying._budget = tokens or None
        seen = {}

        def exchange(indices, outputs):
            seen.update({i: 0 for i in indices})
            where = torch.from_numpy(SEQUENCES.outputs(indices))
            assert torch.allclose(outputs["logprobs"], held[where], atol=1e-5)
            return {"logprobs": torch.ones_like(outputs["logprobs"])}

        policy.zero_grad()
        replaying.forward_backward(policy, SEQUENCES, ["logprobs"], exchange)
        gradients.append([p.grad.clone() for p in policy.parameters])
    assert all(torch.allclose(a, b, atol=1e-4) for a, b in zip(*gradients))
    policy.publish()
    assert torch.allclose(logprobs(replaying, policy), moved, atol=1e-5)


@pytest.mark.parametrize("kind", ["qwen3_moe", "deepseek_v3"])
def test_the_experts_of_the_sampler_are_repeated(tmp_path, kind, capfd):
    model = load(tmp_path, kind)
    policy = trained(model)
    recording = Trainer(router_replay="R2")
    logprobs(recording, policy)
    _, chosen = recording._routing._known[policy]
    layers = model.config.num_hidden_layers  # the first of DeepSeek's is not a mixture
    experts = np.full((len(SEQUENCES.trained), layers, 2), -1, np.int16)
    for s in range(len(SEQUENCES)):
        own = chosen.get(SEQUENCES.identity(s).tobytes(), experts[:0])  # one has no outputs
        rows = experts[SEQUENCES.offsets[s] - s :][: len(own)]
        rows[:, : -own.shape[1]], rows[:, -own.shape[1] :] = 0, own  # as vLLM sends them
    for name, weight in model.module.named_parameters():
        if name.endswith("gate.weight"):
            weight.copy_(torch.randn_like(weight) * 30)  # the trainer alone chooses others
    held, moved = logprobs(recording, policy), logprobs(Trainer(), policy)
    assert not torch.allclose(moved, held, atol=1e-3)
    trainer = Trainer(router_replay="R3")
    told = replace(SEQUENCES, experts=experts)
    assert torch.allclose(trainer.forward(policy, told, ["logprobs"])["logprobs"], held, atol=1e-5)
    assert torch.allclose(logprobs(Trainer(router_replay="R3"), policy), moved, atol=1e-5)
    zero = weighing(SEQUENCES, {"logprobs": torch.zeros(COUNT)})
    trainer.forward_backward(policy, told, ["logprobs"], zero)
    known = int((experts[:, layers - 1, 0] >= 0).sum())
    assert trainer.counters["train/tokens_without_experts"] == len(experts) - known > 0
    assert "has not told" in capfd.readouterr().err
    with pytest.raises(UserMistake, match="other layers"):
        Trainer(router_replay="R3").forward(policy, replace(SEQUENCES, experts=experts[:, :1]), ["logprobs"])


@pytest.mark.parametrize("kind", ["qwen3_moe", "gpt_oss"])
def test_the_auxiliary_loss_is_that_of_transformers(tmp_path, kind):
    model = load(tmp_path, kind)
    policies = Policies(model)
    policy = policies[policies.create({"kind": "full"})]
    lone = sequences_of([([5, 7, 9, 11, 13, 15, 20], [1] * 6)])
    trainer = Trainer(router_aux_loss=0.5)
    for _ in range(2):  # the metric is that of the last request, not a sum
        policy.zero_grad()
        trainer.forward_backward(policy, lone, ["logprobs"], weighing(lone, {"logprobs": torch.zeros(6)}))
    theirs = AutoModelForCausalLM.from_pretrained(model.directory, dtype=torch.float32).eval()
    ids = torch.tensor([[5, 7, 9, 11, 13, 15]])
    loss = theirs(ids, output_router_logits=True, use_cache=False).aux_loss
    assert trainer.counters["train/router_aux_loss"] == pytest.approx(loss.item(), rel=1e-5)
    (0.5 * loss).backward()
    wanted = {name: weight.grad for name, weight in theirs.named_parameters() if weight.grad is not None}
    found = {name: master.grad for name, master in zip(policy._weights, policy.parameters)}
    assert any(float(gradient.abs().max()) > 1e-4 for gradient in wanted.values())
    assert all(torch.allclose(found[name], wanted[name], atol=1e-6) for name in wanted)


def test_the_router_computes_in_float32(tmp_path):
    model = load(tmp_path, "qwen3_moe", dtype="bfloat16")
    assert model.attention == "packed"
    dtypes = []
    for layer in model.decoder.model.layers:
        layer.mlp.gate.register_forward_hook(lambda _, inputs, outputs: dtypes.append((inputs[0].dtype, outputs[0].dtype)))
    logprobs(Trainer(), trained(model))
    assert dtypes and set(dtypes) == {(torch.bfloat16, torch.float32)}


def test_a_model_without_experts_is_refused(tmp_path):
    model = load(tmp_path, "llama")
    with pytest.raises(UserMistake, match="no experts"):
        model.mixtures.require_replay("tiny")
    with pytest.raises(UserMistake, match="no auxiliary loss"):
        model.mixtures.require_loss("tiny")
    with pytest.raises(UserMistake, match="no experts that LoRA"):
        Policies(model).create({**LORA, "targets": ["attn", "experts"]})

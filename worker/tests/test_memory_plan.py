"""The memory plan equals what training really allocates, within 15%."""

import json
import os
import subprocess
import sys
from pathlib import Path
from itertools import product

import numpy as np
import pytest
import torch
from count_memory import RANKS, live, peak_of
from families.text import TEXT, build
from hone_sharded.memory import measure_shared
from hone_worker.memory_plan import Sharing, Training, measure, measure_frozen
from hone_worker.models.model import load_model
from hone_worker.models.plain_model import find_source
from hone_worker.models.score_model import ScoreModel
from hone_worker.policies.adamw import AdamSettings
from hone_worker.policies.registry import Policies
from hone_worker.training.trainer import Trainer
from models import sequences_of, weighing
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification

LORA = {"kind": "lora", "rank": 8, "alpha": 16, "targets": ["attn", "mlp"], "seed": 1}
FULL = {"kind": "full"}
SHAPES = {
    "llama": dict(hidden_size=256, intermediate_size=704, num_hidden_layers=4, num_attention_heads=8, vocab_size=2048),
    "qwen3": dict(
        hidden_size=128,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=32,
        vocab_size=6000,
        tie_word_embeddings=True,
    ),
}
TOKENS = 448


def save(kind: str, folder: Path, auto: type = AutoModelForCausalLM, **more):
    """Saves a random model, and returns its configuration."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, max_position_embeddings=2048, **SHAPES[kind], **more)
    auto.from_config(config).save_pretrained(folder)
    return config


def test_layers_of_a_class_of_their_own_are_planned(tmp_path):
    folder = build(next(family for family in TEXT if family.kind == "falcon"), tmp_path)
    model = load_model(str(folder), "model", cache_dir=tmp_path, device="cpu", dtype="float32")
    policies = Policies(model)
    parameters = policies[policies.create(LORA)].parameters
    planned = measure(AutoConfig.from_pretrained(folder), Training(LORA, 64, torch.float32, "cpu"))
    assert planned.gradients == 4 * sum(parameter.numel() for parameter in parameters) > 0


CASES = list(product(SHAPES, ["float32", "bfloat16"], [LORA, FULL], [False, True]))
FEW = [CASES[0], CASES[3], CASES[9], CASES[10]]


@pytest.mark.parametrize("kind,dtype,adapter,checkpointing", CASES if os.environ.get("HONE_NIGHTLY") else FEW)
def test_the_plan_is_what_training_allocates(kind, dtype, adapter, checkpointing, tmp_path):
    config = save(kind, tmp_path)
    before = live()
    model = load_model(
        str(tmp_path), "model", cache_dir=tmp_path, device="cpu", dtype=dtype, gradient_checkpointing=checkpointing
    )
    policies = Policies(model)
    policy = policies[policies.create(adapter)]
    ids = torch.randint(3, 2000, (TOKENS + 1,)).tolist()
    sequences, trainer = sequences_of([(ids, [1] * TOKENS)]), Trainer(chunk_size=64)
    ask = weighing(sequences, {"logprobs": torch.ones(TOKENS)})

    def backward() -> None:
        trainer.forward_backward(policy, sequences, ["logprobs"], ask)

    backward()  # lays out tiles and fills caches
    policy.optim_step(AdamSettings(1e-4, 0.9, 0.95, 1e-8, 0.0, 1.0))
    policy.use_current()
    fixed, peak = live() - before, peak_of(backward)
    plan = measure(config, Training(adapter, TOKENS, model.dtype, "cpu", checkpointing, chunk_size=64))
    assert plan.fixed == pytest.approx(fixed, rel=0.05), (plan, fixed)
    assert plan.activations + plan.head == pytest.approx(peak, rel=0.15), (plan, peak)


def test_a_frozen_model_needs_its_weights_and_one_layer(tmp_path):
    config, before = save("llama", tmp_path), live()
    model = load_model(str(tmp_path), "model", cache_dir=tmp_path, device="cpu", dtype="float32")
    policies = Policies(model)
    policy = policies[policies.create({"kind": "none"})]
    sequences = sequences_of([(torch.randint(3, 2000, (TOKENS + 1,)).tolist(), [1] * TOKENS)])
    trainer = Trainer(chunk_size=64)
    trainer.forward(policy, sequences, ["logprobs"])
    weights = live() - before
    plan = measure_frozen(config, Training(FULL, TOKENS, torch.float32, "cpu", chunk_size=64), TOKENS, False)
    assert plan.fixed == pytest.approx(weights, rel=0.05)
    assert plan.working == pytest.approx(peak_of(lambda: trainer.forward(policy, sequences, ["logprobs"])), rel=0.15)


def test_a_reward_model_has_no_output_layer(tmp_path):
    config, before = save("qwen3", tmp_path, AutoModelForSequenceClassification, num_labels=1), live()
    model = ScoreModel(find_source(str(tmp_path), "judge", cache_dir=tmp_path, device="cpu", dtype="float32", output_layer=False))
    tokens, offsets = np.arange(TOKENS, dtype=np.int32), np.array([0, TOKENS])
    model.score(tokens, offsets)
    weights = live() - before
    plan = measure_frozen(config, Training(FULL, TOKENS, torch.float32, "cpu"), TOKENS, True)
    assert plan.fixed == pytest.approx(weights, rel=0.05)
    assert plan.working == pytest.approx(peak_of(lambda: model.score(tokens, offsets)), rel=0.15)


@pytest.mark.skipif(not os.environ.get("HONE_NIGHTLY"), reason="two processes for each of 16 cases")
def test_the_plan_of_two_processes_is_what_each_allocates(tmp_path):
    chosen = CASES
    configs = {kind: save(kind, tmp_path / kind) for kind in {kind for kind, *_ in chosen}}
    cases = [
        {"sharding": "fsdp", "adapter": adapter, "dtype": dtype, "checkpointing": recomputes, "tokens": TOKENS, "folder": str(tmp_path / kind)}
        for kind, dtype, adapter, recomputes in chosen
    ]
    script = Path(__file__).with_name("count_memory.py")
    printed = subprocess.run([sys.executable, script, json.dumps(cases)], capture_output=True, check=True, text=True).stdout
    counts = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    for (kind, dtype, adapter, recomputes), counted in zip(chosen, counts, strict=True):
        sharing = Sharing(RANKS, "fsdp")
        training = Training(adapter, TOKENS, getattr(torch, dtype), "cpu", recomputes, chunk_size=64, sharing=sharing)
        plan = measure_shared(configs[kind], training)
        assert plan.fixed == pytest.approx(counted["fixed"], rel=0.05), (kind, dtype, adapter, plan, counted)
        assert plan.working == pytest.approx(counted["peak"], rel=0.15), (kind, dtype, adapter, plan, counted)

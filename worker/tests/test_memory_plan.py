"""The memory plan equals what training really allocates, within 15%."""

import gc
import os
from itertools import product

import pytest
import torch
from hone_worker.memory_plan import Training, measure
from hone_worker.models.model import load_model
from hone_worker.policies.adamw import AdamSettings
from hone_worker.policies.registry import Policies
from hone_worker.training.trainer import Trainer
from models import sequences_of, weighing
from transformers import AutoConfig, AutoModelForCausalLM

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


def live() -> int:
    """Bytes of all tensors."""
    gc.collect()
    tensors = [each for each in gc.get_objects() if type(each) in (torch.Tensor, torch.nn.Parameter)]
    parts = [part.untyped_storage() for each in tensors for part in (each, each.grad) if part is not None]
    return sum({storage.data_ptr(): storage.nbytes() for storage in parts}.values())


def peak_of(run) -> int:
    """The most bytes that torch's allocator held during `run`, beyond those before."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        run()
    held = peak = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    return peak


CASES = list(product(SHAPES, ["float32", "bfloat16"], [LORA, FULL], [False, True]))
FEW = [CASES[0], CASES[3], CASES[9], CASES[10]]


@pytest.mark.parametrize("kind,dtype,adapter,checkpointing", CASES if os.environ.get("HONE_NIGHTLY") else FEW)
def test_the_plan_is_what_training_allocates(kind, dtype, adapter, checkpointing, tmp_path):
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, max_position_embeddings=2048, **SHAPES[kind])
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
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

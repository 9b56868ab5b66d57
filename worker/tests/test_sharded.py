"""Several processes that share one model compute what one process computes."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hone_worker.models.value_layer import read_value_layer
from hone_worker.policies.adamw import AdamSettings
from hone_worker.policies.registry import Policies
from hone_worker.training.trainer import Trainer
from models import build, load, sample_sequences, weighing
from safetensors.torch import load_file
from worker_client import Client, finite

ADAM = {
    "learning_rate": 1e-3, "beta1": 0.9, "beta2": 0.99, "eps": 1e-8, "weight_decay": 0.01, "max_grad_norm": 1.0,
}  # fmt: skip
LORA = {"kind": "lora", "rank": 3, "alpha": 6, "targets": ["attn", "mlp", "unembed"], "seed": 1}
FULL = {"kind": "full"}
SEQUENCES = sample_sequences()
ARRAYS = {"tokens": SEQUENCES.tokens, "offsets": SEQUENCES.offsets, "trained": SEQUENCES.trained}
COUNT = int(SEQUENCES.starts[-1])


def weights_of(step: int, names: tuple[str, ...]) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    return {name: torch.randn(COUNT, generator=generator) for name in names}


class Team(Client):
    """A learner of several processes."""

    def __init__(self, folder: Path, ranks: int = 2, **options: Any):
        super().__init__("hone_sharded", HONE_RANKS=str(ranks))
        common = {"cache_dir": str(folder.parent), "device": "cpu", "dtype": "float32", "micro_batch_tokens": 16}
        self.load = self.call("load", model=str(folder), **{**common, **options})

    def create(self, adapter: dict, **fields: Any) -> int:
        return self.call("create_policy", adapter=adapter, **fields)["policy"]

    def forward(self, policy: int, *names: str) -> dict[str, np.ndarray]:
        _, arrays, _ = self.answer(self.send("forward", ARRAYS, policy=policy, outputs=list(names)))
        return arrays

    def backward(self, policy: int, weights: dict[str, torch.Tensor], cancel: bool = False) -> list[np.ndarray]:
        """Returns the sequences of each micro-batch."""
        request = self.send("forward_backward", ARRAYS, policy=policy, outputs=list(weights))
        batches = []
        while True:
            header, arrays = self.receive()
            assert header["id"] == request and "error" not in header, header
            if "event" not in header:
                return batches
            batches.append(arrays["sequences"])
            where = SEQUENCES.outputs(list(arrays["sequences"]))
            gradient = {name: values[where].numpy() for name, values in weights.items()}
            assert all(len(gradient[name]) == len(arrays[name]) for name in gradient)
            self.send("cancel", id=request) if cancel else self.send("gradient", gradient, id=request)

    def steps(self, policy: int, which: range, names: tuple[str, ...] = ("logprobs", "entropy")) -> list[float]:
        norms = []
        for step in which:
            self.backward(policy, weights_of(step, names))
            taken = self.call("optim_step", policy=policy, **ADAM)
            assert taken["applied"] is True, taken
            norms.append(finite(taken["grad_norm"]))
        return norms

    def saved(self, policy: int, target: Path) -> dict[str, torch.Tensor]:
        answer = self.call("save_state", policy=policy, dir=str(target))
        assert answer["ok"], answer
        return load_file(target / "weights.safetensors") | load_file(target / "optimizer.safetensors")


class One:
    """The same in one process."""

    def __init__(self, folder: Path, adapter: dict, head: str | None = None):
        policies = Policies(load(folder))
        self.policy = policies[policies.create(adapter, head)]
        self.trainer = Trainer(micro_batch_tokens=64)

    def forward(self, *names: str) -> dict[str, torch.Tensor]:
        return self.trainer.forward(self.policy, SEQUENCES, list(names))

    def steps(self, which: range, names: tuple[str, ...] = ("logprobs", "entropy")) -> list[float]:
        norms = []
        for step in which:
            exchange = weighing(SEQUENCES, weights_of(step, names))
            self.trainer.forward_backward(self.policy, SEQUENCES, list(names), exchange)
            norms.append(self.policy.optim_step(AdamSettings(**ADAM)).grad_norm)
        return norms

    def saved(self, target: Path) -> dict[str, torch.Tensor]:
        self.policy.save_state(target)
        return load_file(target / "weights.safetensors") | load_file(target / "optimizer.safetensors")


def difference(a: dict[str, Any], b: dict[str, Any]) -> float:
    assert a.keys() == b.keys()
    return max(float((torch.as_tensor(a[name]) - torch.as_tensor(b[name])).abs().max()) for name in a)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return build("llama", tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def teams(folder) -> Iterator[Callable[..., Team]]:
    """Teams by their options, opened once."""
    opened: dict[str, Team] = {}

    def open_team(**options: Any) -> Team:
        key = repr(sorted(options.items()))
        if key not in opened:
            opened[key] = Team(folder, **options)
        return opened[key]

    yield open_team
    for team in opened.values():
        team.__exit__()


SETTINGS = {
    "fsdp": {"sharding": "fsdp"},
    "fsdp offloaded": {"sharding": "fsdp", "offload_parameters": True, "gradient_checkpointing": True},
    "fsdp, moments offloaded, sequences shared": {
        "sharding": "fsdp", "offload_optimizer": True, "sequence_parallel": 2,
    },
}  # fmt: skip


@pytest.mark.parametrize("adapter", [LORA, FULL], ids=["lora", "full"])
@pytest.mark.parametrize("setting", SETTINGS)
def test_three_steps_equal_one_process(folder, teams, tmp_path, setting, adapter):
    team, one = teams(**SETTINGS[setting]), One(folder, adapter)
    policy = team.create(adapter)
    names = ("logprobs", "entropy", "concentration")
    assert difference(team.forward(policy, *names), one.forward(*names)) < 1e-5
    assert np.allclose(team.steps(policy, range(3)), one.steps(range(3)), rtol=1e-5)
    ours, theirs = team.saved(policy, tmp_path / "team"), one.saved(tmp_path / "one")
    assert difference(ours, theirs) < 1e-5
    for name, tensor in ours.items():
        if name.endswith(".square"):
            assert tensor.abs().max() > 0, f"{name} never had a gradient"
    assert team.call("close_policy", policy=policy)["ok"]

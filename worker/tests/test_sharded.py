"""Several processes that share one model compute what one process computes, however they share it.

`HONE_NIGHTLY=1` tries every combination of settings, which takes ten minutes. DeepSpeed is installed beside the worker's
Python on first use."""

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hone_worker.policies.adamw import AdamSettings
from hone_worker.policies.registry import Policies
from hone_worker.training.trainer import Trainer
from models import build, load, sample_sequences, weighing
from safetensors.torch import load_file
from worker_client import WORKER, Client, finite

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

    def __init__(self, folder: Path, ranks: int = 2, environment: dict[str, str] = {}, **options: Any):
        super().__init__("hone_sharded", HONE_RANKS=str(ranks), **environment)
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


@cache
def deepspeed_path() -> str:
    command = ["node", str(WORKER.parent / "scripts/setup.mjs"), "package", "deepspeed", "--json"]
    found = json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout)
    return os.pathsep.join([str(WORKER), found["directory"]])


@pytest.fixture(scope="module")
def teams(folder) -> Iterator[Callable[..., Team]]:
    """Opens teams by their options. The last two stay open."""
    opened: dict[str, Team] = {}

    def open_team(**options: Any) -> Team:
        key = repr(options)
        if key not in opened:
            if len(opened) == 2:
                opened.pop(next(iter(opened))).__exit__()
            needs_deepspeed = options["sharding"].startswith("zero")
            environment = {"PYTHONPATH": deepspeed_path()} if needs_deepspeed else {}
            opened[key] = Team(folder, environment=environment, **options)
        return opened[key]

    yield open_team
    for team in opened.values():
        team.__exit__()


FSDP = {"sharding": "fsdp"}


def combinations() -> Iterator[dict[str, Any]]:
    for sharding in ("zero1", "zero2", "zero3", "fsdp"):
        for parameters in (False, True) if sharding in ("zero3", "fsdp") else (False,):
            for optimizer in (False, True):
                for ranks in (1, 2):
                    yield {
                        "sharding": sharding,
                        "offload_parameters": parameters,
                        "offload_optimizer": optimizer,
                        "sequence_parallel": ranks,
                        # Recomputed layers gather their weights again.
                        "gradient_checkpointing": parameters,
                    }


A_FEW = [
    {"sharding": "zero1", "sequence_parallel": 2},
    {"sharding": "zero2", "offload_optimizer": True},
    {"sharding": "zero3", "offload_parameters": True, "offload_optimizer": True, "gradient_checkpointing": True},
    {"sharding": "fsdp", "offload_parameters": True, "gradient_checkpointing": True},
    {"sharding": "fsdp", "offload_optimizer": True, "sequence_parallel": 2},
    FSDP,
]  # fmt: skip
SETTINGS = list(combinations()) if os.environ.get("HONE_NIGHTLY") == "1" else A_FEW


def label(settings: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in settings.items() if repr(value) not in ("False", "1"))


@pytest.mark.parametrize("settings", SETTINGS, ids=label)
def test_three_steps_equal_one_process(folder, teams, tmp_path, settings):
    team = teams(**settings)
    names = ("logprobs", "entropy", "concentration")
    of_layers = {**LORA, "targets": ["attn", "mlp"]}
    for kind, adapter in (("lora", LORA), ("layers", of_layers), ("full", FULL)):
        policy, one = team.create(adapter), One(folder, adapter)
        assert difference(team.forward(policy, *names), one.forward(*names)) < 1e-5
        team.backward(policy, weights_of(9, ("logprobs",)), cancel=True)
        team.backward(policy, weights_of(9, ("logprobs",)))
        assert team.call("zero_grad", policy=policy)["ok"]
        assert team.call("optim_step", policy=policy, **ADAM)["grad_norm"] == 0
        one.policy.optim_step(AdamSettings(**ADAM))
        assert np.allclose(team.steps(policy, range(3)), one.steps(range(3)), rtol=1e-5)
        states = [tmp_path / f"{kind}-{who}" for who in ("team", "one")]
        ours, theirs = team.saved(policy, states[0]), one.saved(states[1])
        assert difference(ours, theirs) < 1e-5
        for name, tensor in ours.items():
            for rank, part in enumerate(tensor.chunk(2) if name.endswith(".square") else ()):
                assert part.abs().max() > 0, f"{name} never had a gradient on rank {rank}"

        # Each goes on from the other's checkpoint, which replaces what was there.
        back = One(folder, adapter)
        back.policy.load_state(states[0], True)
        on = team.create(adapter)
        team.steps(on, range(7, 8))
        assert team.call("load_state", policy=on, dir=str(states[1]), optimizer=True)["version"] == 0
        norms = one.steps(range(3, 5))
        assert np.allclose(back.steps(range(3, 5)), norms, rtol=1e-5)
        assert np.allclose(team.steps(on, range(3, 5)), norms, rtol=1e-5)
        whole = one.saved(tmp_path / f"{kind}-whole")
        assert difference(back.saved(tmp_path / f"{kind}-back"), whole) < 1e-5
        assert difference(team.saved(on, tmp_path / f"{kind}-on"), whole) < 1e-5
        for each in (policy, on):
            assert team.call("close_policy", policy=each)["ok"]


def test_a_critic_with_zero3_goes_on_from_its_checkpoint(folder, teams, tmp_path):
    """Its value head's bias is one number, which two ranks cannot share evenly."""
    team, one = teams(sharding="zero3"), One(folder, LORA, head="value")
    critic = team.create(LORA, head="value")
    team.steps(critic, range(2), ("values",))
    one.steps(range(2), ("values",))
    assert difference(team.saved(critic, tmp_path / "team"), one.saved(tmp_path / "one")) < 1e-5
    on = team.create(LORA, head="value")
    assert team.call("load_state", policy=on, dir=str(tmp_path / "team"), optimizer=True)["version"] == 0
    assert np.allclose(team.steps(on, range(2, 4), ("values",)), one.steps(range(2, 4), ("values",)), rtol=1e-5)
    assert difference(team.saved(on, tmp_path / "on"), one.saved(tmp_path / "more")) < 1e-5


def test_critics_references_and_cancelled_losses(folder, teams, tmp_path):
    team = teams(**FSDP)
    reference, critic, policy = team.create({"kind": "none"}), team.create(LORA, head="value"), team.create(LORA)
    before = team.forward(reference, "logprobs")

    one = One(folder, LORA, head="value")
    assert np.allclose(team.steps(critic, range(2), ("values",)), one.steps(range(2), ("values",)), rtol=1e-5)
    assert difference(team.forward(critic, "values"), one.forward("values")) < 1e-5
    assert difference(team.saved(critic, tmp_path / "team"), one.saved(tmp_path / "one")) < 1e-5
    assert "value head" in team.call("export", policy=critic, dir=str(tmp_path / "x"), **{"as": "merged"})["error"]["message"]

    trained = One(folder, LORA)
    weights = weights_of(0, ("logprobs",))
    trained.trainer.forward_backward(trained.policy, SEQUENCES, ["logprobs"], weighing(SEQUENCES, weights))
    team.backward(policy, weights)
    team.backward(policy, weights, cancel=True)
    lent = team.create({"kind": "none"})  # the same model, without the adapter
    assert difference(team.forward(lent, "logprobs"), before) < 1e-6
    norm = finite(team.call("optim_step", policy=policy, **ADAM)["grad_norm"])
    assert norm == pytest.approx(trained.policy.optim_step(AdamSettings(**ADAM)).grad_norm, rel=1e-5)
    assert difference(team.forward(policy, "logprobs"), trained.forward("logprobs")) < 1e-5
    assert difference(team.forward(reference, "logprobs"), before) == 0
    refused = team.call("optim_step", policy=reference, **ADAM)["error"]
    assert refused["kind"] == "user" and "nothing to train" in refused["message"]


def test_exports_are_those_of_one_process(folder, teams, tmp_path):
    team = teams(**FSDP)
    for adapter, form in ((LORA, "adapter"), (LORA, "merged"), (FULL, "merged")):
        one, policy = One(folder, adapter), team.create(adapter)
        one.steps(range(1))
        team.steps(policy, range(1))
        targets = [tmp_path / f"{who}-{adapter['kind']}-{form}" for who in ("one", "two")]
        one.policy.export(targets[0], form)
        assert team.call("export", policy=policy, dir=str(targets[1]), **{"as": form})["ok"]
        assert "already exists" in team.call("export", policy=policy, dir=str(targets[1]), **{"as": form})["error"]["message"]
        name = "adapter_model.safetensors" if form == "adapter" else "model.safetensors"
        theirs, ours = (load_file(target / name) for target in targets)
        assert difference(ours, theirs) < 1e-5
        files = [sorted(path.name for path in target.iterdir()) for target in targets]
        assert files[0] == files[1]


def test_a_mixture_of_experts_is_refused(tmp_path):
    with Team(build("mixtral", tmp_path)) as team:
        assert "mixture of experts" in team.load["error"]["message"]

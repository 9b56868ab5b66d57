"""Rounding to bfloat16: what is exact stays, small updates arrive in full on average, and nothing depends on order."""

import pytest
import torch
from hone_worker.policies.adamw import AdamSettings
from hone_worker.policies.registry import Policies
from hone_worker.policies.rounding import Probe, Thresholds
from hone_worker.training.trainer import Trainer
from models import build, load, sample_sequences, weighing

CPU = torch.device("cpu")
SHAPE = (400, 600)
WEIGHT = (torch.randn(SHAPE, generator=torch.Generator().manual_seed(0)) * 0.05).bfloat16()


def rounded(exact: torch.Tensor, name: str = "layer") -> torch.Tensor:
    target = torch.empty(exact.shape, dtype=torch.bfloat16)
    Thresholds(name, tuple(exact.shape), CPU).round(exact, target)
    return target


def test_exact_weights_stay() -> None:
    special = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, 1.0, -3.5e38, 1e-40, torch.nan]).bfloat16()
    for weight in (WEIGHT, special):
        assert torch.equal(rounded(weight.float()).view(torch.int16), weight.view(torch.int16))


@pytest.mark.parametrize("update", [1e-7, -1e-7, 3e-6, -3e-5, 1e-3, -0.2])
def test_an_update_of_any_size_arrives_on_average(update: float) -> None:
    exact = WEIGHT.float() + update
    moved = rounded(exact).double() - WEIGHT.double()
    unit = (exact.abs() * 2**-7).double()
    assert abs(moved.mean() / update - 1) < (0.2 if abs(update) < 1e-5 else 0.02)
    assert bool(((rounded(exact).double() - exact.double()).abs() <= unit).all())
    if abs(update) < 1e-6:
        assert abs((exact.bfloat16().double() - WEIGHT.double()).mean() / update) < 0.05


def test_a_larger_weight_is_never_rounded_lower() -> None:
    results = [rounded(WEIGHT.float() + update).double() for update in (-1e-3, -1e-6, 0, 1e-7, 1e-5, 1e-2)]
    assert all(bool((low <= high).all()) for low, high in zip(results, results[1:]))


def test_thresholds_depend_only_on_the_name() -> None:
    exact = WEIGHT.float() + 1e-5
    assert torch.equal(rounded(exact), rounded(exact))
    assert not torch.equal(rounded(exact), rounded(exact, "another layer"))
    top = torch.empty(7, SHAPE[1], dtype=torch.bfloat16)
    Thresholds("layer", SHAPE, CPU).round(exact[:7], top)
    assert torch.equal(top, rounded(exact)[:7])


def test_a_probe_measures_the_share_that_is_lost() -> None:
    for kept, lost in ((1.0, 0.0), (0.25, 0.75), (0.0, 1.0)):
        probe = Probe()
        probe.before(torch.zeros(3), torch.ones(3))
        probe.after(torch.full((3,), 2.0), 1 + torch.full((3,), 2.0) * kept)
        assert probe.lost() == pytest.approx(lost)
    assert Probe().lost() == 0


LORA = {"kind": "lora", "rank": 8, "alpha": 8, "targets": ["attn", "mlp"], "seed": 1}


@pytest.mark.parametrize("adapter", [LORA, {"kind": "full"}], ids=["lora", "full"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_step_loses_little(adapter: dict, dtype: str, tmp_path, monkeypatch) -> None:
    """Steps of 1e-4, so that enough weights of a tiny model change to measure it."""

    def lost() -> float:
        policies = Policies(load(build("llama", tmp_path, torch.bfloat16), dtype=dtype))
        policy = policies[policies.create(adapter)]
        sequences = sample_sequences()
        weights = {"logprobs": torch.ones(int(sequences.starts[-1]))}
        Trainer().forward_backward(policy, sequences, ["logprobs"], weighing(sequences, weights))
        return policy.optim_step(AdamSettings(1e-4, 0.9, 0.95, 1e-8, 0.0, 0.0)).lost_to_rounding

    assert abs(lost()) < (0.3 if dtype == "bfloat16" else 1e-6)
    monkeypatch.setattr(Thresholds, "round", lambda self, weight, target: target.copy_(weight))
    assert dtype == "float32" or lost() > 0.5


@pytest.mark.parametrize("adapter", [LORA, {"kind": "full"}], ids=["lora", "full"])
def test_a_resumed_and_an_exported_policy_have_the_same_weights(adapter: dict, tmp_path) -> None:
    folder = build("llama", tmp_path, torch.bfloat16)
    sequences = sample_sequences()

    def open_policy(path, adapter: dict):
        policies = Policies(load(path, dtype="bfloat16"))
        return policies[policies.create(adapter)]

    def logprobs(policy) -> torch.Tensor:
        return Trainer().forward(policy, sequences, ["logprobs"])["logprobs"]

    policy = open_policy(folder, adapter)
    weights = {"logprobs": torch.ones(int(sequences.starts[-1]))}
    for _ in range(2):
        Trainer().forward_backward(policy, sequences, ["logprobs"], weighing(sequences, weights))
        policy.optim_step(AdamSettings(2e-5, 0.9, 0.95, 1e-8, 0.0, 0.0))
    policy.save_state(tmp_path / "state")
    resumed = open_policy(folder, {**adapter, "seed": 2})
    resumed.load_state(tmp_path / "state", optimizer=True)
    policy.export(tmp_path / "merged", "merged")
    exported = open_policy(tmp_path / "merged", {"kind": "none"})
    assert torch.equal(logprobs(resumed), logprobs(policy))
    assert torch.equal(logprobs(exported), logprobs(policy))
    assert not torch.equal(logprobs(open_policy(folder, {"kind": "none"})), logprobs(policy))

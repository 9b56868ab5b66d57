"""DeepSpeed's stages compute what one process computes. DeepSpeed is installed beside the worker's Python on first use."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from models import build
from test_sharded import FULL, LORA, One, Team, difference, weights_of
from worker_client import WORKER


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return build("llama", tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def path() -> str:
    command = ["node", str(WORKER.parent / "scripts/setup.mjs"), "package", "deepspeed", "--json"]
    found = json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout)
    return os.pathsep.join([str(WORKER), found["directory"]])


STAGES = {
    "1": {"sharding": "zero1"},
    "2, moments offloaded": {"sharding": "zero2", "offload_optimizer": True},
    "3, all offloaded": {
        "sharding": "zero3", "offload_optimizer": True, "offload_parameters": True, "gradient_checkpointing": True,
    },
}  # fmt: skip


@pytest.mark.parametrize("stage", STAGES)
def test_three_steps_equal_one_process(folder, path, tmp_path, stage):
    names = ("logprobs", "entropy", "concentration")
    with Team(folder, environment={"PYTHONPATH": path}, **STAGES[stage]) as team:
        for kind, adapter in (("lora", LORA), ("full", FULL)):
            policy, one = team.create(adapter), One(folder, adapter)
            assert difference(team.forward(policy, *names), one.forward(*names)) < 1e-5
            team.backward(policy, weights_of(9, ("logprobs",)), cancel=True)
            team.backward(policy, weights_of(9, ("logprobs",)))
            assert team.call("zero_grad", policy=policy)["ok"]
            assert np.allclose(team.steps(policy, range(3)), one.steps(range(3)), rtol=1e-5)
            state = tmp_path / f"{kind}-team"
            ours, theirs = team.saved(policy, state), one.saved(tmp_path / f"{kind}-one")
            assert difference(ours, theirs) < 1e-5
            for name, tensor in ours.items():
                if name.endswith(".square"):
                    assert tensor.abs().max() > 0, f"{name} never had a gradient"

            # A new policy goes on from the one process's checkpoint.
            resumed = team.create(adapter)
            assert team.call("load_state", policy=resumed, dir=str(tmp_path / f"{kind}-one"), optimizer=True)["ok"]
            assert np.allclose(team.steps(resumed, range(3, 5)), one.steps(range(3, 5)), rtol=1e-5)
            ours = team.saved(resumed, tmp_path / f"{kind}-resumed")
            assert difference(ours, one.saved(tmp_path / f"{kind}-on")) < 1e-5

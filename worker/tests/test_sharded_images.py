"""Several processes compute sequences with images as one process does; the vision part stays as it is."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from hone_worker.policies.adamw import AdamSettings
from hone_worker.policies.registry import Policies
from hone_worker.training.trainer import Trainer
from models import weighing
from safetensors.torch import load_file
from test_images import ADAPTERS, batch, conversations, folder, images, load
from test_sharded import deepspeed_path
from worker_client import Client

ADAM = {
    "learning_rate": 1e-3, "beta1": 0.9, "beta2": 0.99, "eps": 1e-6, "weight_decay": 0.0, "max_grad_norm": 1.0,
}  # fmt: skip


IN_CI = [("smolvlm", "lora", "zero3")]
ALL = [
    (family, kind, sharding)
    for family in ("qwen2_vl", "smolvlm")
    for kind in ("full", "lora")
    for sharding in ("fsdp", "zero1", "zero2", "zero3")
]


@pytest.mark.parametrize(("family", "kind", "sharding"), ALL if os.environ.get("HONE_NIGHTLY") == "1" else IN_CI)
def test_a_step_equals_one_process(family: str, kind: str, sharding: str, tmp_path: Path) -> None:
    path, adapter = folder(family), ADAPTERS[kind]
    model = load(path)
    items, files = conversations(model), images(model)
    sequences = batch(items)
    policies = Policies(model)
    one, trainer = policies[policies.create(adapter)], Trainer(micro_batch_tokens=64)
    weights = {"logprobs": torch.randn(int(sequences.starts[-1]), generator=torch.Generator().manual_seed(1))}
    placed = [(s, picture) for s, item in enumerate(items) for picture in item.pictures]
    media = {"media": [picture.image.hash for _, picture in placed]}
    ranges = [[s, picture.at, len(picture.image.tokens)] for s, picture in placed]
    arrays = {
        "tokens": sequences.tokens,
        "offsets": sequences.offsets,
        "trained": sequences.trained,
        "media_ranges": np.array(ranges, np.int32),
    }
    ends = np.cumsum([0, *(len(file.encoded) for file in files)]).astype(np.int32)
    bytes_ = np.frombuffer(b"".join(file.encoded for file in files), np.uint8)

    environment = {"PYTHONPATH": deepspeed_path()} if sharding.startswith("zero") else {}
    with Client("hone_sharded", HONE_RANKS="2", **environment) as team:
        common = {"device": "cpu", "dtype": "float32", "micro_batch_tokens": 16, "sharding": sharding}
        loaded = team.call("load", model=str(path), cache_dir=str(path.parent), **common)
        assert loaded["model"]["images"] == model.info()["images"]
        policy = team.call("create_policy", adapter=adapter)["policy"]
        refused = team.call("create_policy", adapter={**adapter, "train_vision": True})["error"]
        assert refused["message"] == "several processes do not train the vision part"
        request = team.send("forward", arrays, policy=policy, outputs=["logprobs"], **media)
        missing = team.answer(request)[0]["error"]
        assert (missing["kind"], missing["hashes"]) == ("media", [file.hash for file in files])

        answer, put, _ = team.answer(
            team.send("put_media", {"bytes": bytes_, "offsets": ends}, hashes=[file.hash for file in files])
        )
        assert answer["ok"] and put["tokens"].tolist() == np.concatenate([file.tokens for file in files]).tolist()

        def close() -> None:
            asked = team.send("forward", arrays, policy=policy, outputs=["logprobs"], **media)
            expected = trainer.forward(one, sequences, ["logprobs"])["logprobs"]
            np.testing.assert_allclose(team.answer(asked)[1]["logprobs"], expected, atol=1e-5)

        close()
        request = team.send("forward_backward", arrays, policy=policy, outputs=["logprobs"], **media)
        while (event := team.receive())[0].get("event") == "outputs":
            where = sequences.outputs(list(event[1]["sequences"]))
            team.send("gradient", {"logprobs": weights["logprobs"][where].numpy()}, id=request)
        assert event[0]["ok"], event
        taken = team.call("optim_step", policy=policy, **ADAM)
        trainer.forward_backward(one, sequences, ["logprobs"], weighing(sequences, weights))
        assert np.isclose(taken["grad_norm"], one.optim_step(AdamSettings(**ADAM)).grad_norm, rtol=1e-4)
        close()

        assert team.call("export", policy=policy, dir=str(tmp_path / "two"), **{"as": "merged"})["ok"]
    one.export(tmp_path / "one", "merged")
    ours, theirs = (load_file(tmp_path / which / "model.safetensors") for which in ("two", "one"))
    assert ours.keys() == theirs.keys()
    for name, weight in ours.items():
        torch.testing.assert_close(weight, theirs[name], atol=1e-5, rtol=0)

"""Sequences with images through the verl driver, 2 FSDP ranks on the CPU, beside Hone's own worker in this process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hone_verl.__main__ import _MODULES
from hone_worker.policies.adamw import AdamSettings
from hone_worker.policies.registry import Policies
from hone_worker.training.sequences import Sequences
from hone_worker.training.trainer import Trainer
from safetensors.torch import load_file

sys.path[:0] = [str(Path(__file__).parents[depth]) for depth in (0, 1, 2)]
from models import weighing
from test_driver import STEP, Driver
from test_images import batch, folder, load
from tiny_vision_models import FAMILIES, IMAGE_TOKEN, Sequence_, picture, sequence, text

FULL = {"kind": "full"}
LORA = {"kind": "lora", "rank": 2, "alpha": 4.0, "targets": ["attn", "mlp"], "seed": 0}


def message(items: list[Sequence_], sequences: Sequences) -> tuple[dict, dict]:
    """The arrays and the fields of a request."""
    placed = [(s, picture) for s, item in enumerate(items) for picture in item.pictures]
    ranges = [[s, picture.at, len(picture.image.tokens)] for s, picture in placed]
    arrays = {"tokens": sequences.tokens, "offsets": sequences.offsets.astype(np.int32), "trained": sequences.trained}
    if not placed:
        return arrays, {}
    return {**arrays, "media_ranges": np.array(ranges, np.int32)}, {"media": [p.image.hash for _, p in placed]}


def test_verls_environment_reads_images_as_the_workers_does(tmp_path: Path) -> None:
    """It has an older transformers."""
    target, image = tmp_path / "read.pt", tmp_path / "image.png"
    image.write_bytes(picture(1, 61))
    folders = [folder(family) for family in FAMILIES]
    subprocess.run(
        [os.environ["HONE_VERL_PYTHON"], Path(__file__).with_name("read_images.py"), target, image, *folders],
        check=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    found = torch.load(target, weights_only=False)
    for path in folders:
        model = load(path)
        read = model.vision.read("image", image.read_bytes())
        tokens, features = found[str(path)]
        np.testing.assert_array_equal(tokens, read.tokens)
        torch.testing.assert_close(features, model.vision.features([read]), atol=1e-5, rtol=1e-5)


# The others differ in what the test above covers.
@pytest.mark.parametrize("family", FAMILIES if os.environ.get("HONE_NIGHTLY") == "1" else ["qwen2_vl"])
def test_images_are_those_of_one_process(family: str, tmp_path: Path) -> None:
    path = folder(family)
    model = load(path)
    files = [model.vision.read(f"image {seed}", picture(seed, width)) for seed, width in ((1, 20), (2, 61))]
    small, wide = files
    mixed = [
        sequence(text(0, 4), small, text(1, 5), wide, text(2, 3), small, text(3, 4)),
        sequence(text(4, 9)),
        sequence(wide, text(5, 3)),
        sequence(text(0, 4), small, text(6, 4)),
    ]
    # In the second, only one rank has an image; the third has an image token that is not an image.
    batches = [mixed, [mixed[3], sequence(text(7, 4))], [sequence(text(8, 4), [IMAGE_TOKEN], text(9, 3))]]
    policies, trainer = Policies(model), Trainer(micro_batch_tokens=64)
    one = policies[policies.create(FULL)]
    start = trainer.forward(one, batch(mixed), ["logprobs"])["logprobs"]

    with Driver() as driver:
        config = {
            "trainer": {"nnodes": 1, "n_gpus_per_node": 2},
            "actor_rollout_ref": {"actor": {"ppo_max_token_len_per_gpu": 6}},
        }
        started = driver.send(
            "load", model=str(path), name="tiny", config=config, ray={"num_cpus": 2}, logs=str(tmp_path / "logs")
        )
        loaded = driver.answer(started)[0]
        assert loaded.get("ok"), loaded
        assert loaded["model"]["images"] == model.info()["images"]
        refused = driver.call("create_policy", adapter={**FULL, "train_vision": True})["error"]
        assert refused["message"] == "verl's workers do not train the vision part"
        created = driver.call("create_policy", adapter=FULL)
        assert created["trainable_parameters"] == sum(weight.numel() for weight in model.weights_to_train(False).values())

        ends = np.cumsum([0, *(len(file.encoded) for file in files)]).astype(np.int32)
        encoded = np.frombuffer(b"".join(file.encoded for file in files), np.uint8)
        arrays, media = message(mixed, batch(mixed))
        missing = driver.answer(driver.send("stage", arrays, **media))[0]["error"]
        assert (missing["kind"], missing["hashes"]) == ("media", [file.hash for file in files])
        hashes = [file.hash for file in files]
        answer, put, _ = driver.answer(driver.send("put_media", {"bytes": encoded, "offsets": ends}, hashes=hashes))
        assert answer["ok"] and put["tokens"].tolist() == np.concatenate([file.tokens for file in files]).tolist()

        def forward(items: list[Sequence_], policy: int = 1) -> np.ndarray:
            arrays, media = message(items, batch(items))
            header, found, _ = driver.answer(driver.send("forward", arrays, policy=policy, outputs=["logprobs"], **media))
            assert header.get("ok"), header
            return found["logprobs"]

        def step(items: list[Sequence_], weights: torch.Tensor, native: bool = False) -> dict:
            """`native`: with a loss that verl computes."""
            arrays, media = message(items, batch(items))
            if native:
                loss = {"name": "gpg", "settings": {}}
                arrays["advantages"] = -weights.numpy()
                number = driver.send("forward_backward", arrays, policy=1, outputs=["logprobs"], loss=loss, **media)
                assert driver.answer(number)[0].get("ok")
                return driver.call("optim_step", policy=1, **STEP)
            number = driver.send("forward_backward", arrays, policy=1, outputs=["logprobs"], **media)
            assert driver.receive()[0]["event"] == "outputs"
            driver.send("gradient", {"logprobs": weights.numpy()}, id=number)
            assert driver.answer(number)[0]["ok"]
            return driver.call("optim_step", policy=1, **STEP)

        for seed, items in enumerate(batches):
            sequences = batch(items)
            weights = torch.randn(int(sequences.starts[-1]), generator=torch.Generator().manual_seed(seed))
            expected = trainer.forward(one, sequences, ["logprobs"])["logprobs"]
            np.testing.assert_allclose(forward(items), expected, atol=1e-5, rtol=1e-5)
            trainer.forward_backward(one, sequences, ["logprobs"], weighing(sequences, {"logprobs": weights}))
            assert step(items, weights, native=seed == 1)["grad_norm"] == pytest.approx(one.optim_step(AdamSettings(**STEP)).grad_norm, rel=1e-5)
        assert driver.call("create_policy", adapter={"kind": "none"})["policy"] == 2
        np.testing.assert_allclose(forward(mixed, policy=2), start, atol=1e-5, rtol=1e-5)
        refused = driver.call("create_policy", adapter=FULL, head="value")["error"]
        assert "reads images" in refused["message"]

        assert driver.call("export", policy=1, dir=str(tmp_path / "two"), **{"as": "merged"}).get("ok")
        one.export(tmp_path / "one", "merged")
        ours, theirs = (load_file(tmp_path / which / "model.safetensors") for which in ("two", "one"))
        assert ours.keys() == theirs.keys()
        for name, weight in ours.items():
            torch.testing.assert_close(weight, theirs[name], atol=1e-5, rtol=1e-5)

        before = forward(mixed)
        assert driver.call("save_state", policy=1, dir=str(tmp_path / "state")).get("ok")
        step(mixed, torch.ones(len(mixed) * 3))
        assert driver.call("load_state", policy=1, dir=str(tmp_path / "state"), optimizer=True).get("ok")
        np.testing.assert_array_equal(forward(mixed), before)

        assert driver.call("close_policy", policy=1)["ok"]
        assert driver.call("create_policy", adapter=LORA)["policy"] == 1
        step(mixed, torch.ones(len(mixed) * 3))
        trained = forward(mixed)
        assert np.abs(trained - start.numpy()).max() > 1e-3
        assert driver.call("export", policy=1, dir=str(tmp_path / "adapted"), **{"as": "merged"}).get("ok")
        again = load(tmp_path / "adapted")
        policies = Policies(again)
        merged = policies[policies.create({"kind": "none"})]
        np.testing.assert_allclose(trainer.forward(merged, batch(mixed), ["logprobs"])["logprobs"], trained, atol=1e-5)


def test_a_gpu_gets_the_engine_that_reads_images() -> None:
    """In verl's own engine, images would be dropped in silence."""
    choose = """
import verl
from verl.workers.engine import EngineRegistry
for backend in ("fsdp", "fsdp2"):
    found = EngineRegistry.get_engine_cls("language_model", backend)
    print(f"{found.__module__}.{found.__qualname__}")
"""
    platform = {"VERL_PLATFORM": "nvidia", "VERL_USE_EXTERNAL_MODULES": ",".join(_MODULES["nvidia"])}
    engine = {"VERL_ENGINE_DEVICE": "cuda", "VERL_ENGINE_VENDOR": "nvidia"}
    path = {"PYTHONPATH": str(Path(__file__).parents[2])}
    run = subprocess.run(
        [os.environ["HONE_VERL_PYTHON"], "-c", choose],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, **platform, **engine, **path},
    )
    assert run.stdout.split() == ["hone_verl.engine_images.LanguageModelEngine"] * 2

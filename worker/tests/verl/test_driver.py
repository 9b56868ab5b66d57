"""The verl driver on Ray, 2 FSDP ranks on the CPU, beside plain transformers in this process. HONE_VERL_PYTHON runs it.

The tests share one driver and run in this order: the first are refused, the last two kill parts of it."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM

sys.path[:0] = [str(Path(__file__).parents[depth]) for depth in (1, 2)]
from make_tiny_model import make_tokenizer
from worker_client import Client, ragged

SEQUENCES = [[5, 6, 7, 8, 9], [10, 11, 12], [20, 21, 22, 23, 24, 25, 26]]
TRAINED = [[0, 1, 1, 1], [1, 1], [0, 0, 1, 1, 1, 1]]
ACTOR = {"kind": "full"}
# With a smaller eps, the first step of a weight whose gradient is nearly 0 would be decided by rounding.
STEP = {"learning_rate": 1e-2, "beta1": 0.9, "beta2": 0.95, "eps": 1e-3, "weight_decay": 0.1, "max_grad_norm": 0.5}


class Driver(Client):
    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [os.environ["HONE_VERL_PYTHON"], "-m", "hone_verl"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )
        self._last = 0

    def __exit__(self, *_: object) -> None:
        self.process.stdin.close()
        self.process.wait(30)

    def _read(self, count: int) -> bytes:
        data = self.process.stdout.read(count)
        if len(data) < count:
            raise EOFError(self.process.wait())
        return data

    def train(self, policy: int, gradient: Callable[[dict], dict], outputs: list[str], **fields: object) -> dict:
        """One forward_backward; gives the outputs that were sent."""
        arrays = None if "batch" in fields else batch()
        number = self.send("forward_backward", arrays, policy=policy, outputs=outputs, **fields)
        header, found = self.receive()
        assert header.get("event") == "outputs", header
        self.send("gradient", gradient(found), id=number)
        assert self.answer(number)[0]["ok"]
        return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("verl")


@pytest.fixture(scope="module")
def model(folder: Path) -> Path:
    tokenizer = make_tokenizer()
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=512, initializer_range=0.3, tie_word_embeddings=False,
        pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )
    Qwen2ForCausalLM(config).save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    return folder / "model"


@pytest.fixture(scope="module")
def started() -> Iterator[Driver]:
    with Driver() as driver:
        yield driver


@pytest.fixture(scope="module")
def loaded(started: Driver, folder: Path, model: Path) -> tuple[Driver, dict]:
    config = {
        "trainer": {"nnodes": 1, "n_gpus_per_node": 2},
        "actor_rollout_ref": {
            "actor": {
                "clip_ratio_high": 0.28, "ppo_max_token_len_per_gpu": 6, "optim": {"lr": 2e-6},
                "fsdp_config": {"reshard_after_forward": False},
            },
        },
        "rllm": {"is": "not verl's"},
    }
    number = started.send(
        "load", model=str(model), name="tiny", config=config, ray={"num_cpus": 2}, logs=str(folder / "logs")
    )
    answer, _, events = started.answer(number)
    assert answer.get("ok"), answer
    assert [event["text"] for event, _ in events][-1] == "loading the model into verl's workers"
    assert started.call("create_policy", adapter=ACTOR)["trainable_parameters"] == answer["model"]["parameters"]
    return started, answer


@pytest.fixture(scope="module")
def driver(loaded: tuple[Driver, dict]) -> Driver:
    return loaded[0]


def batch() -> dict[str, np.ndarray]:
    return {**ragged(SEQUENCES), "trained": np.concatenate(TRAINED).astype(np.uint8)}


def plain(path: Path) -> Qwen2ForCausalLM:
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)


def expected(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The outputs by plain transformers, one sequence after the other."""
    found = {"logprobs": [], "entropy": [], "concentration": []}
    for tokens, trained in zip(SEQUENCES, TRAINED, strict=True):
        every = model(torch.tensor([tokens])).logits[0, :-1].log_softmax(-1)
        rows = every[torch.tensor(trained).bool()]
        targets = torch.tensor(tokens[1:])[torch.tensor(trained).bool()]
        found["logprobs"].append(rows.gather(1, targets[:, None])[:, 0])
        found["entropy"].append(-(rows.exp() * rows).sum(-1))
        found["concentration"].append((2 * rows).exp().sum(-1))
    return {name: torch.cat(parts) for name, parts in found.items()}


def slopes(found: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """A gradient that depends on the outputs, as a loss's does."""
    return {
        "logprobs": (np.sin(np.arange(9)) * np.exp(found["logprobs"] / 10)).astype(np.float32),
        "entropy": np.linspace(-0.1, 0.1, 9, dtype=np.float32),
    }


@pytest.mark.parametrize(
    ("config", "ray", "kind", "words"),
    [
        ({"actor_rollout_ref": {"actor": {"clip_ratoi": 1}}}, {}, "user", "unexpected keyword argument 'clip_ratoi'"),
        ({"trainer": {"n_gpus_per_node": 1}}, {"address": "127.0.0.1:1"}, "run", "127.0.0.1:1 (ray_kwargs"),
    ],
)
def test_does_not_start(
    started: Driver, folder: Path, model: Path, config: dict, ray: dict, kind: str, words: str
) -> None:
    number = started.send("load", model=str(model), config=config, ray=ray, logs=str(folder / "refused"))
    error = started.answer(number)[0]["error"]
    assert (error["kind"], words in error["message"]) == (kind, True), error


def test_a_gpu_that_torch_does_not_see_is_refused(started: Driver, folder: Path, model: Path) -> None:
    answer = started.call("load", model=str(model), config={}, gpu=True, logs=str(folder / "refused"))
    assert "cannot use this machine's GPU" in answer["error"]["message"]


def test_says_what_it_runs(loaded: tuple[Driver, dict], folder: Path) -> None:
    _, answer = loaded
    assert (answer["device"], answer["ranks"], answer["model"]["eos_token_ids"]) == ("cpu", 2, [2])
    assert answer["versions"]["verl"] == "0.9.1"
    assert {entry["path"] for entry in answer["adapted"]} >= {
        "actor_rollout_ref.actor.strategy",
        "critic.ppo_max_token_len_per_gpu",
    }
    assert (folder / "logs" / "actor-1.log").stat().st_size > 0


def test_reads_values_back_from_the_workers(driver: Driver) -> None:
    names = ("actor.clip_ratio_high", "actor.optim.lr", "actor.strategy", "actor.fsdp_config.use_torch_compile")
    paths = [f"actor_rollout_ref.{name}" for name in names]
    answer = driver.call("readback", paths=[*paths, "trainer.nnodes", "actor_rollout_ref.actor.typo"])
    assert list(answer["values"].values()) == [0.28, 2e-6, "fsdp2", False, 1]
    assert answer["missing"] == ["actor_rollout_ref.actor.typo"]
    assert list(answer["held"].values()) == ["worker"] * 4 + ["driver"]


def test_outputs_are_those_of_transformers(driver: Driver, model: Path) -> None:
    staged = driver.answer(driver.send("stage", batch()))[0]["batch"]
    names = ["logprobs", "entropy", "concentration"]
    with torch.no_grad():
        wanted = expected(plain(model))
    for request in ({"batch": staged}, {}):
        number = driver.send("forward", None if request else batch(), policy=1, outputs=names, **request)
        header, found, _ = driver.answer(number)
        assert header.get("ok"), header
        for name in names:
            np.testing.assert_allclose(found[name], wanted[name], rtol=1e-5, atol=1e-5)
    assert driver.call("unstage", batch=staged)["ok"]


def test_a_step_is_that_of_one_process(driver: Driver, model: Path, folder: Path) -> None:
    reference = plain(model)
    outputs = expected(reference)
    gradient = slopes({"logprobs": outputs["logprobs"].detach().numpy()})
    sum((outputs[name] * torch.tensor(gradient[name])).sum() for name in gradient).backward()
    norm = torch.nn.utils.clip_grad_norm_(reference.parameters(), STEP["max_grad_norm"])
    betas = (STEP["beta1"], STEP["beta2"])
    torch.optim.AdamW(
        reference.parameters(), lr=STEP["learning_rate"], betas=betas, eps=STEP["eps"], weight_decay=STEP["weight_decay"]
    ).step()
    driver.train(1, slopes, ["logprobs", "entropy"])
    assert forward(driver).size  # FSDP keeps the whole weights of a forward pass without a backward pass
    answer = driver.call("optim_step", policy=1, **STEP)
    assert answer["applied"] and answer["grad_norm"] == pytest.approx(norm.item(), rel=1e-5)
    np.testing.assert_allclose(forward(driver), expected(reference)["logprobs"].detach(), rtol=1e-4, atol=1e-4)
    assert "lost_to_rounding" not in answer  # verl does not measure it
    assert driver.call("publish", policy=1)["version"] == 1
    assert driver.call("export", policy=1, dir=str(folder / "step"), **{"as": "merged"}).get("ok")
    stepped = plain(folder / "step").state_dict()
    for name, value in reference.state_dict().items():
        torch.testing.assert_close(stepped[name], value, rtol=1e-5, atol=1e-5)


def forward(driver: Driver) -> np.ndarray:
    return driver.answer(driver.send("forward", batch(), policy=1, outputs=["logprobs"]))[1]["logprobs"]


def test_a_loaded_state_continues_exactly(driver: Driver, folder: Path) -> None:
    state = str(folder / "state")

    def step() -> np.ndarray:
        found = driver.train(1, slopes, ["logprobs", "entropy"])["logprobs"]
        driver.call("optim_step", policy=1, **STEP)
        return found

    assert driver.call("save_state", policy=1, dir=state).get("ok")
    first = [step(), step()]
    assert driver.call("load_state", policy=1, dir=state, optimizer=True)["version"] == 1
    np.testing.assert_array_equal([step(), step()], first)
    assert "already exists" in driver.call("save_state", policy=1, dir=state)["error"]["message"]


def test_verls_own_merger_reads_a_saved_state(loaded: tuple[Driver, dict], folder: Path) -> None:
    """In a process without Hone; it writes bfloat16. The state is that of the model which was exported before."""
    merge(folder / "state", folder / "merged")
    merged = plain(folder / "merged").state_dict()
    for name, value in plain(folder / "step").state_dict().items():
        assert torch.equal(merged[name].bfloat16(), value.bfloat16()), name


def merge(state: Path, target: Path) -> None:
    places = ["--local_dir", str(state), "--target_dir", str(target)]
    merger = [os.environ["HONE_VERL_PYTHON"], "-m", "verl.model_merger", "merge", "--backend", "fsdp", *places]
    subprocess.run(merger, check=True, capture_output=True, env={**os.environ, "PYTHONPATH": ""})


def test_drops_a_cancelled_loss_and_a_gradient_that_is_not_finite(driver: Driver) -> None:
    before = forward(driver)
    number = driver.send("forward_backward", batch(), policy=1, outputs=["logprobs"])
    assert driver.receive()[0]["event"] == "outputs"
    driver.send("cancel", id=number)
    assert driver.answer(number)[0]["cancelled"]
    driver.train(1, lambda found: {"logprobs": np.full_like(found["logprobs"], np.nan)}, ["logprobs"])
    answer = driver.call("optim_step", policy=1, **STEP)
    assert (answer["applied"], answer["grad_norm"]) == (False, "NaN")
    np.testing.assert_array_equal(forward(driver), before)
    driver.train(1, slopes, ["logprobs", "entropy"])
    assert driver.call("zero_grad", policy=1)["ok"]
    assert driver.call("optim_step", policy=1, **STEP)["grad_norm"] == 0


def test_the_reference_stays_and_the_critic_learns(driver: Driver, model: Path) -> None:
    assert driver.call("create_policy", adapter={"kind": "none"})["policy"] == 2
    _, found, _ = driver.answer(driver.send("forward", batch(), policy=2, outputs=["logprobs"]))
    with torch.no_grad():
        np.testing.assert_allclose(found["logprobs"], expected(plain(model))["logprobs"], rtol=1e-5, atol=1e-5)
    critic = driver.call("create_policy", adapter=ACTOR, head="value")
    assert critic.get("policy") == 3, critic
    errors = []
    for _ in range(5):
        values = driver.train(3, lambda found: {"values": found["values"] - 1}, ["values"])["values"]
        errors.append(float(((values - 1) ** 2).mean()))
        driver.call("optim_step", policy=3, **{**STEP, "max_grad_norm": 0})
    assert errors[-1] < errors[0]
    assert errors[0] == pytest.approx(1)  # the values start at 0
    assert driver.call("close_policy", policy=3)["ok"]


def test_verls_own_merger_reads_an_adapter(driver: Driver, folder: Path) -> None:
    assert driver.call("close_policy", policy=1)["ok"]
    adapter = {"kind": "lora", "rank": 4, "alpha": 8, "targets": ["attn", "mlp"], "seed": 0}
    assert driver.call("create_policy", adapter=adapter).get("policy") == 1
    driver.train(1, slopes, ["logprobs", "entropy"])
    assert driver.call("optim_step", policy=1, **STEP)["applied"]
    assert driver.call("save_state", policy=1, dir=str(folder / "lora")).get("ok")
    assert driver.call("export", policy=1, dir=str(folder / "adapter"), **{"as": "adapter"}).get("ok")
    merge(folder / "lora", folder / "lora-merged")
    ours, theirs = [
        (load_file(place / "adapter_model.safetensors"), json.loads((place / "adapter_config.json").read_text()))
        for place in (folder / "adapter", folder / "lora-merged" / "lora_adapter")
    ]
    assert (ours[1]["r"], ours[1]["lora_alpha"]) == (theirs[1]["r"], theirs[1]["lora_alpha"]) == (4, 8)
    assert ours[0].keys() == theirs[0].keys()
    for name, value in ours[0].items():
        assert torch.equal(value.bfloat16(), theirs[0][name].bfloat16()), name
        assert value.abs().max() > 0, name


@pytest.mark.parametrize(
    ("op", "fields", "words"),
    [
        ("create_policy", {"adapter": ACTOR}, "one trained policy"),
        ("forward", {"policy": 1, "outputs": ["values"], "batch": 0}, "not staged"),
        ("load_state", {"policy": 1, "dir": "nowhere", "optimizer": True}, "not a checkpoint of verl"),
        ("optim_step", {"policy": 2, **STEP}, "not trained"),
        ("sample", {"policy": 1}, "does not support the operation 'sample'"),
    ],
)
def test_refuses_with_a_sentence(driver: Driver, op: str, fields: dict, words: str) -> None:
    assert words in driver.call(op, **fields)["error"]["message"]


def test_a_killed_worker_gives_a_sentence(driver: Driver, loaded: tuple[Driver, dict]) -> None:
    victim = loaded[1]["workers"][1]["pid"]
    os.kill(victim, signal.SIGKILL)
    error = driver.answer(driver.send("forward", batch(), policy=1, outputs=["logprobs"]))[0]["error"]
    assert error["kind"] == "run"
    assert f"worker 1 of 2 (actor, process {victim}) died" in error["message"]


def test_nothing_stays_when_the_driver_is_killed(driver: Driver) -> None:
    # Every process of the cluster names its folder.
    pattern = re.compile(rf"[^\0=]*/hone-ray-{driver.process.pid}\b")
    found = {int(path.parent.name): pattern.search(contents(path)) for path in Path("/proc").glob("[0-9]*/cmdline")}
    started = [pid for pid, match in found.items() if match]
    (folder,) = {match[0] for match in found.values() if match}
    driver.process.kill()
    deadline = time.monotonic() + 60
    while any(Path(f"/proc/{pid}").exists() for pid in started) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert [pid for pid in started if Path(f"/proc/{pid}").exists()] == []
    shutil.rmtree(folder)  # the next driver would remove it


def contents(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:  # it has ended
        return ""

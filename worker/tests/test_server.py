"""The worker as a process: every operation, errors that it survives, and ends that it does not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from models import WORKER_DEVICE
from sampling_helpers import folder, teacher_forced
from worker_client import WORKER, Client, finite, ragged

LORA = {"kind": "lora", "rank": 4, "alpha": 8, "targets": ["attn", "mlp"], "seed": 1}
ADAM = {
    "learning_rate": 0.01,
    "beta1": 0.9,
    "beta2": 0.95,
    "eps": 1e-8,
    "weight_decay": 0.0,
    "max_grad_norm": 0.0,
}
SETTINGS = {
    "device": WORKER_DEVICE,
    "dtype": "float32",
    "threads": 1,
    "chunk_size": 16,
    "micro_batch_tokens": 24,
    "gradient_checkpointing": False,
    "max_sample_rows": 8,
}


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with Client() as client:
        loaded = client.call(
            "load", model=str(folder("llama")), name="tiny", cache_dir=str(folder("llama")), **SETTINGS
        )
        assert loaded["model"]["name"] == "tiny" and loaded["model"]["eos_token_ids"] == [2]
        yield client


@pytest.fixture
def policy(client: Client) -> Iterator[int]:
    created = client.call("create_policy", adapter=LORA)
    assert created["trainable_parameters"] > 0
    yield created["policy"]
    assert client.call("close_policy", policy=created["policy"])["ok"]


def samples_of(events: list) -> dict[int, tuple[dict, dict]]:
    return {header["request"]: (header, arrays) for header, arrays in events if header["event"] == "sample"}


def test_samples(client: Client, policy: int) -> None:
    prompts = [[5, 6, 7], [8, 9]]
    asked = [
        {"max_tokens": 6, "temperature": 1, "seed": seed, "prompt_logprobs": True, "top_logprobs": 2}
        for seed in (1, 2)
    ]
    answer, _, events = client.answer(client.sample(policy, prompts, asked, stream=True))
    assert answer["ok"] and any(header["event"] == "token" for header, _ in events)
    for place, (header, arrays) in samples_of(events).items():
        assert header["policy_version"] == 0 and header["stop_reason"] in ("stop", "length")
        whole = prompts[place] + arrays["tokens"].tolist()
        expected = teacher_forced("llama", whole)[:-1].gather(1, _column(whole[1:]))[:, 0].numpy()
        found = np.concatenate([arrays["prompt_logprobs"][1:], arrays["logprobs"]])
        np.testing.assert_allclose(found, expected, atol=1e-4)
        assert arrays["top_tokens"].shape == (len(arrays["tokens"]), 2)


def test_stop_strings_are_found_in_the_models_own_text(client: Client, policy: int) -> None:
    """Every token of this tokenizer is a byte, so the commonest letters end nearly every sample."""
    letters = [chr(code) for code in range(32, 127)]
    asked = [
        {"max_tokens": 60, "seed": seed, "stop_strings": letters, "ignore_eos": True} for seed in range(3)
    ]
    _, _, events = client.answer(client.sample(policy, [[5, 6]] * 3, asked))
    for header, arrays in samples_of(events).values():
        assert header["stop_reason"] == "stop" and len(arrays["tokens"]) < 60


def _column(tokens: list[int]):
    import torch

    return torch.tensor(tokens)[:, None]


def train(client: Client, policy: int, sequences: list[list[int]], scale: float = -1.0) -> list[int]:
    """A loss that is the sum of log-probabilities times the scale; gives the sequences it was sent."""
    arrays = ragged(sequences)
    arrays["trained"] = np.ones(len(arrays["tokens"]) - len(sequences), np.uint8)
    id = client.send("forward_backward", arrays, policy=policy, outputs=["logprobs"])
    seen: list[int] = []
    while True:
        header, arrays = client.receive()
        assert header["id"] == id and "error" not in header, header
        if "event" not in header:
            return seen
        seen += arrays["sequences"].tolist()
        gradient = np.full(len(arrays["logprobs"]), scale, np.float32)
        client.send("gradient", {"logprobs": gradient}, id=id)


def test_trains_publishes_saves_and_samples_meanwhile(client: Client, policy: int, tmp_path: Path) -> None:
    sequences = [[5, 6, 7, 8, 9, 10], [5, 6, 11, 12], [20, 21, 22, 23, 24, 25, 26]]
    arrays = ragged(sequences)
    arrays["trained"] = np.ones(len(arrays["tokens"]) - 3, np.uint8)

    def total() -> float:
        header, found, _ = client.answer(
            client.send("forward", arrays, policy=policy, outputs=["logprobs", "entropy"])
        )
        assert header["ok"] and found["entropy"].shape == found["logprobs"].shape == (len(arrays["trained"]),)
        return float(found["logprobs"].sum())

    before = total()
    assert sorted(train(client, policy, sequences)) == [0, 1, 2]
    stepped = client.call("optim_step", policy=policy, **ADAM)
    assert stepped["applied"] and finite(stepped["grad_norm"]) > 0
    assert total() > before
    assert client.call("publish", policy=policy)["version"] == 1
    train(client, policy, sequences, scale=float("nan"))
    dropped = client.call("optim_step", policy=policy, **ADAM)
    assert not dropped["applied"] and dropped["grad_norm"] == "NaN"
    train(client, policy, sequences)
    assert client.call("zero_grad", policy=policy)["ok"]
    trained = total()
    assert client.call("save_state", policy=policy, dir=str(tmp_path / "state"))["ok"]
    assert client.call("export", policy=policy, dir=str(tmp_path / "adapter"), **{"as": "adapter"})["ok"]
    assert (tmp_path / "adapter" / "adapter_model.safetensors").exists()
    train(client, policy, sequences, scale=1.0)
    client.call("optim_step", policy=policy, **ADAM)
    assert total() < trained
    assert client.call("load_state", policy=policy, dir=str(tmp_path / "state"), optimizer=True)["ok"]
    assert total() == pytest.approx(trained, abs=1e-4)


def test_samples_go_on_between_other_operations(client: Client, policy: int) -> None:
    """A long sample is under way while a step is trained and published; it ends with the new version."""
    sampling = client.sample(
        policy, [[5]], [{"max_tokens": 200, "temperature": 1, "seed": 3, "ignore_eos": True}], stream=True
    )
    header, _ = client.receive()
    assert (
        header == {"id": sampling, "event": "token", "arrays": header.get("arrays")}
        or header["event"] == "token"
    )
    answered: list[str] = []
    publish = client.send("publish", policy=policy)
    tokens_after = 0
    while True:
        header, arrays = client.receive()
        if header["id"] == publish:
            assert header["version"] == 1
            answered.append("publish")
        elif header.get("event") == "token":
            tokens_after += bool(answered)
        elif header.get("event") == "sample":
            sample_header, sample_arrays = header, arrays
        else:
            break
    assert answered and tokens_after > 0
    versions = sample_arrays["token_versions"]
    assert len(sample_arrays["tokens"]) == len(versions) == 200
    assert sample_header["policy_version"] == versions[-1] == 1 and versions[0] == 0
    assert (np.diff(versions) >= 0).all()


def test_abort(client: Client, policy: int) -> None:
    sampling = client.sample(
        policy, [[5], [6]], [{"max_tokens": 250, "ignore_eos": True, "seed": s} for s in (1, 2)], stream=True
    )
    client.receive()
    abort = client.send("abort", sample=sampling)
    seen = []
    while len(seen) < 2 + 2:
        header, _ = client.receive()
        if header.get("event") != "token":
            seen.append((header["id"], header.get("stop_reason", header.get("ok"))))
    assert seen == [(sampling, "aborted"), (sampling, "aborted"), (sampling, True), (abort, True)]
    assert client.call("abort", sample=sampling)["ok"]


def test_cancel_leaves_the_worker_well(client: Client, policy: int) -> None:
    arrays = ragged([[5, 6, 7]])
    arrays["trained"] = np.ones(2, np.uint8)
    id = client.send("forward_backward", arrays, policy=policy, outputs=["logprobs"])
    assert client.receive()[0]["event"] == "outputs"
    client.send("cancel", id=id)
    assert client.receive()[0] == {"id": id, "ok": True, "cancelled": True}
    train(client, policy, [[5, 6, 7]])


def test_wrong_gradients_are_told(client: Client, policy: int) -> None:
    arrays = ragged([[5, 6, 7]])
    arrays["trained"] = np.ones(2, np.uint8)
    for reply, words in [
        ({"logprobs": np.zeros(3, np.float32)}, "shape [3] for 2 outputs"),
        ({"values": np.zeros(2, np.float32)}, "gradient for values"),
        ({}, "without logprobs"),
    ]:
        id = client.send("forward_backward", arrays, policy=policy, outputs=["logprobs"])
        assert client.receive()[0]["event"] == "outputs"
        client.send("gradient", reply, id=id)
        error = client.receive()[0]["error"]
        assert error["kind"] == "internal" and words in error["message"]


@pytest.mark.parametrize(
    "op, fields, kind, words",
    [
        ("dance", {}, "internal", "operation 'dance' does not exist"),
        ("load", {"model": "x"}, "internal", "loads one model"),
        ("publish", {"policy": 99}, "user", "policy 99 does not exist"),
        ("publish", {}, "internal", "policy"),
        (
            "create_policy",
            {"adapter": {"kind": "lora", "rank": 0, "alpha": 1, "targets": ["attn"], "seed": 0}},
            "user",
            "rank 0",
        ),
        ("create_policy", {"adapter": {"kind": "magic"}}, "user", "magic"),
    ],
)
def test_errors_answer_their_request(client: Client, op: str, fields: dict, kind: str, words: str) -> None:
    error = client.call(op, **fields)["error"]
    assert error["kind"] == kind and words in error["message"]
    assert ("trace" in error) == (kind == "internal")
    assert client.call("stats")["ok"]


def test_bad_sample_requests_answer_theirs(client: Client, policy: int) -> None:
    header, _, _ = client.answer(client.sample(policy, [[5], [1000]], [{"max_tokens": 1}, {"max_tokens": 1}]))
    assert header["error"]["kind"] == "user" and "token 1000" in header["error"]["message"]
    header, _, _ = client.answer(client.sample(policy, [[5] * 200], [{"max_tokens": 100}]))
    assert (
        "sample request 0: a prompt of 200 tokens and max_tokens 100 make 300; the model's limit is 256"
        in header["error"]["message"]
    )
    header, _, events = client.answer(client.sample(policy, [], []))
    assert header["ok"] and not events


def test_stats_count_the_work(client: Client, policy: int) -> None:
    before = client.call("stats")["stats"]
    client.answer(
        client.sample(
            policy, [[5, 6]] * 4, [{"max_tokens": 3, "ignore_eos": True, "seed": s} for s in range(4)]
        )
    )
    after = client.call("stats")["stats"]
    gained = {name: after[name] - before[name] for name in after if name.startswith("sample/")}
    assert gained["sample/prompt_tokens"] == 2 and gained["sample/prompts_shared"] == 3
    assert gained["sample/sampled_tokens"] == 12 and gained["sample/decode_steps"] == 3
    assert after["memory/peak_rss_bytes"] >= after["memory/rss_bytes"] > 1e8
    assert all(isinstance(value, (int, float)) for value in after.values())


def gone(process: subprocess.Popen, seconds: float = 10) -> int:
    return process.wait(timeout=seconds)


def test_a_bad_model_is_told_and_the_end_of_input_ends_it_even_while_it_works(tmp_path: Path) -> None:
    with Client() as other:
        answer = other.call("load", model=str(tmp_path / "nothing"), cache_dir=str(tmp_path), **SETTINGS)
        assert answer["error"]["kind"] == "user" and "nothing" in answer["error"]["message"]
        found = other.call("find_model", model=str(folder("llama")), cache_dir=str(tmp_path))
        assert found["directory"] == str(folder("llama"))
        other.call("load", model=str(folder("llama")), cache_dir=str(folder("llama")), **SETTINGS)
        policy = other.call("create_policy", adapter={"kind": "none"})["policy"]
        other.sample(
            policy,
            [[5]] * 8,
            [{"max_tokens": 250, "ignore_eos": True, "seed": s} for s in range(8)],
            stream=True,
        )
        other.receive()
        other.process.stdin.close()
        other.process.stdin = None
        begin = time.monotonic()
        assert gone(other.process) == 0
        assert time.monotonic() - begin < 2


def test_signals_and_prints_do_not_break_it() -> None:
    """Ctrl-C is left to the process that started the worker, SIGTERM ends the worker; prints go to the log."""
    with Client() as other:
        assert other.call("stats")["ok"]
        other.process.send_signal(signal.SIGINT)
        error = other.call("publish", policy=1)["error"]
        assert "before load" in error["message"]
        other.process.send_signal(signal.SIGINT)
        assert other.call("stats")["ok"]
        other.process.send_signal(signal.SIGTERM)
        assert gone(other.process) == 0
        assert b"before load" in other.process.stderr.read()


def test_a_broken_stream_ends_it_with_a_word() -> None:
    with Client() as other:
        other.raw(b"this is not a frame at all")
        assert gone(other.process) == 1
        assert "not a message" in other.process.stderr.read().decode()


@pytest.mark.skipif(sys.platform != "linux", reason="a Linux system call")
def test_a_killed_parent_takes_it_along() -> None:
    """The worker's input is held open by this test, so only the parent's death can end it."""
    read, write = os.pipe()
    script = (
        "import subprocess, sys, time\n"
        "command = [sys.executable, '-m', 'hone_worker']\n"
        "p = subprocess.Popen(command, stdin=int(sys.argv[1]), stdout=subprocess.PIPE)\n"
        "print(p.pid, flush=True)\n"
        "p.stdout.read(8)\n"
        "print('up', flush=True)\n"
        "time.sleep(60)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script, str(read)],
        stdout=subprocess.PIPE,
        pass_fds=[read],
        env={**os.environ, "PYTHONPATH": str(WORKER)},
    )
    pid = int(parent.stdout.readline())
    os.write(write, b'\x14\0\0\0\0\0\0\0{"id":1,"op":"stats"')
    os.write(write, b"}")
    assert b"up" in parent.stdout.readline()
    parent.kill()
    parent.wait()
    for _ in range(100):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().split()[2]
        except (FileNotFoundError, ProcessLookupError):
            break
        if state == "Z":
            break
        time.sleep(0.05)
    else:
        pytest.fail("the worker outlived its parent")
    os.close(read)
    os.close(write)


@pytest.mark.parametrize("when", ["before the worker starts", "while a child that started it lives on"])
def test_a_parent_killed_during_start_takes_the_worker_along(when: str) -> None:
    """The input stays open, and the named parent is not the direct one, so the kernel sends no signal."""
    named = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    if when.startswith("before"):
        named.kill()  # It stays a zombie: nothing waits for it.
    with Client(HONE_PARENT_PID=str(named.pid)) as other:
        if when.startswith("while"):
            other.call("stats")
            named.kill()
        assert gone(other.process) == 1
    named.wait()

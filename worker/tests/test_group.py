"""All weights reach another process over gloo; a group whose other side is missing or ends fails with a sentence."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hone_worker.errors import RunFailure
from hone_worker.group import NcclGroup, nccl_library
from safetensors.torch import load_file
from sampling_helpers import folder
from worker_client import Client, ragged

# What an inference server does: joins with rank 1, receives as announced, keeps the tensors.
MEMBER = """
import json, sys
from datetime import timedelta
import torch
import torch.distributed as dist
from safetensors.torch import save_file
host, _, port = sys.argv[1].partition(":")
store = dist.TCPStore(host, int(port), is_master=False)
group = dist.ProcessGroupGloo(store, 1, 2, timedelta(seconds=60))
group.allreduce([torch.zeros(1)]).wait()
for line in sys.stdin:
    update = json.loads(line)
    received = {}
    for name, dtype, shape in zip(update["names"], update["dtypes"], update["shapes"]):
        received[name] = torch.empty(shape, dtype=getattr(torch, dtype))
        group.broadcast(received[name], 0).wait()
    save_file(received, update["path"])
    print("received", flush=True)
"""


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with Client() as client:
        where = str(folder("llama"))
        options = {"device": "cpu", "dtype": "bfloat16", "threads": 1}
        loaded = client.call("load", model=where, name="tiny", cache_dir=where, **options)
        assert loaded["nccl"] is None
        yield client


def open_group(client: Client) -> tuple[int, dict]:
    policy = client.call("create_policy", adapter={"kind": "full"})["policy"]
    return policy, client.call("open_group", policy=policy, backend="gloo")


@pytest.fixture
def members() -> Iterator[list[subprocess.Popen]]:
    started: list[subprocess.Popen] = []
    yield started
    for process in started:
        process.kill()
        process.communicate()


def join(client: Client, members: list[subprocess.Popen], address: str) -> subprocess.Popen:
    pipe = subprocess.PIPE
    member = subprocess.Popen([sys.executable, "-c", MEMBER, address], stdin=pipe, stdout=pipe, text=True)
    members.append(member)
    assert client.call("join_group", size=2, timeout_seconds=120).get("ok")
    return member


def test_the_others_receive_what_an_export_contains(client: Client, members: list, tmp_path: Path) -> None:
    policy, opened = open_group(client)
    member = join(client, members, opened.pop("group"))
    seen = []
    for step in (1, 2):
        update = {**opened, "path": str(tmp_path / f"received-{step}")}
        member.stdin.write(json.dumps(update) + "\n")
        member.stdin.flush()
        assert client.call("broadcast", policy=policy, timeout_seconds=120).get("ok")
        assert member.stdout.readline() == "received\n"
        client.call("export", policy=policy, dir=str(tmp_path / f"export-{step}"), **{"as": "merged"})
        expected = load_file(tmp_path / f"export-{step}" / "model.safetensors")
        received = load_file(tmp_path / f"received-{step}")
        assert received.keys() == expected.keys() and "bfloat16" in opened["dtypes"]
        assert all(torch.equal(received[name], expected[name]) for name in expected)
        seen.append(received)
        train(client, policy)
    assert any(not torch.equal(seen[0][name], seen[1][name]) for name in seen[0])


def train(client: Client, policy: int) -> None:
    adam = {"beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.0, "max_grad_norm": 0.0}
    arrays = {**ragged([[3, 4, 5, 6]]), "trained": np.ones(3, np.uint8)}
    id = client.send("forward_backward", arrays, policy=policy, outputs=["logprobs"])
    _, outputs = client.receive()
    client.send("gradient", {"logprobs": -np.ones_like(outputs["logprobs"])}, id=id)
    assert client.receive()[0].get("ok")
    assert client.call("optim_step", policy=policy, learning_rate=0.01, **adam)["applied"]


def test_a_group_that_nobody_joins_times_out(client: Client) -> None:
    open_group(client)
    error = client.call("join_group", size=2, timeout_seconds=0.5)["error"]
    message = "joining the group for weights: the inference server did not take part within 0.5 s"
    assert error == {"kind": "run", "message": message}
    assert client.call("join_group", size=2, timeout_seconds=1)["error"]["kind"] == "internal"
    assert client.call("stats")["ok"]


def test_a_member_that_stops_or_dies_ends_the_broadcast(client: Client, members: list) -> None:
    for kills in (False, True):
        policy, opened = open_group(client)
        member = join(client, members, opened["group"])
        if kills:
            member.kill()
            member.wait()
        failed = client.call("broadcast", policy=policy, timeout_seconds=3)["error"]
        assert failed["kind"] == "run" and failed["message"].startswith("broadcasting the weights: ")
        assert "\n" not in failed["message"]


def test_only_full_weights_are_broadcast(client: Client) -> None:
    adapter = {"kind": "lora", "rank": 2, "alpha": 4, "targets": ["attn"], "seed": 1}
    policy = client.call("create_policy", adapter=adapter)["policy"]
    assert client.call("open_group", policy=policy, backend="gloo")["error"]["kind"] == "user"


def test_nccl_gives_an_id_or_says_why_not() -> None:
    """Without a GPU, nothing more of NCCL can run."""
    if nccl_library() is None:
        with pytest.raises(RunFailure, match="NCCL"):
            NcclGroup(torch.device("cpu"))
    else:
        assert len(base64.b64decode(NcclGroup(torch.device("cpu")).id)) == 128

"""What the supervisor says when a rank dies, fails or hangs, with ranks that need no torch."""

import re
import textwrap
from pathlib import Path

import numpy as np
import pytest
from hone_sharded.supervisor import merge_outputs, split
from hone_sharded.trainer import plan
from hone_worker.channel import Message
from models import sample_sequences
from worker_client import Client

DRIVER = """
import os
import hone_sharded.supervisor as supervisor
supervisor.GRACE_SECONDS = 1.0
supervisor.RANK_MODULE = "fake_rank"
from hone_worker.channel import serve
serve(lambda channel: supervisor.Supervisor(channel, int(os.environ["HONE_RANKS"])).serve())
"""
RANK = """
import os, signal, time
from hone_worker.channel import open_channel
channel, number = open_channel(), int(os.environ["HONE_RANK"])
while True:
    message = channel.receive(wait=True)
    what = message.header.get(f"rank{number}", {"ok": True})
    if what == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "exit":
        print("no such device", file=__import__("sys").stderr, flush=True)
        os._exit(3)
    if what != "hang":
        channel.send({"id": message.id, **what})
"""
MEMORY = {"error": {"kind": "user", "message": "not enough memory"}, "fatal": True}
WAITED = {"error": {"kind": "run", "message": "timed out"}, "fatal": True, "waited": True}
MISTAKE = {"error": {"kind": "user", "message": "no such folder"}, "fatal": False}


@pytest.fixture
def start(tmp_path: Path):
    clients = []

    def start_team(ranks: int = 2) -> Client:
        (tmp_path / "driver.py").write_text(textwrap.dedent(DRIVER))
        (tmp_path / "fake_rank.py").write_text(textwrap.dedent(RANK))
        path = f"{tmp_path}:{Path(__file__).parent.parent}"
        clients.append(Client("driver", HONE_RANKS=str(ranks), PYTHONPATH=path))
        return clients[-1]

    yield start_team
    for client in clients:
        client.__exit__()


@pytest.mark.parametrize(
    ("replies", "kind", "said"),
    [
        ({"rank1": MEMORY, "rank0": "hang"}, "user", "rank 1 of 2 failed in step: not enough memory"),
        ({"rank1": MEMORY, "rank0": WAITED}, "user", "rank 1 of 2 failed in step: not enough memory"),
        ({"rank0": MEMORY}, "user", "rank 0 of 2 failed in step: not enough memory"),
        ({"rank0": MISTAKE, "rank1": "hang"}, "user", "rank 0 of 2 failed in step: no such folder"),
        ({"rank0": WAITED, "rank1": "hang"}, "run", r"rank 1 \(process \d+\) did not take part in step within"),
    ],
)
def test_a_rank_that_fails_alone_ends_all(start, replies, kind, said):
    team = start()
    error = team.call("step", **replies)["error"]
    assert error["kind"] == kind
    assert team.process.wait(timeout=60) == 1  # with its input still open: the end of it ends a worker too
    _, log = team.process.communicate()
    for text in (error["message"], log.decode()):
        assert re.search(said, text), text


@pytest.mark.parametrize(
    ("reply", "code", "said"),
    [("die", 137, "ended by SIGKILL; the other rank was ended too"), ("exit", 1, "ended with exit code 3")],
)
def test_a_rank_that_ends_ends_all(start, reply, code, said):
    team = start()
    assert team.call("step")["ok"]
    team.send("step", rank1=reply, rank0="hang")
    assert (team.process.stdout.read(), team.process.wait(60)) == (b"", code)
    last = team.process.stderr.read().decode().splitlines()[-1]
    assert "rank 1 of 2 (process" in last and said in last


def test_a_mistake_that_all_ranks_report_ends_only_the_request(start):
    team = start(3)
    assert team.call("step", rank0=MISTAKE, rank1=MISTAKE, rank2=MISTAKE)["error"]["message"] == "no such folder"
    assert team.call("step")["ok"]


def test_outputs_of_ranks_that_share_sequences_are_merged_and_split():
    def part(sequences: list[int], where: list[int]) -> Message:
        arrays = {"sequences": np.array(sequences, np.int32), "where": np.array(where)}
        return Message({}, {**arrays, "logprobs": np.array(where, np.float32) / 10})

    parts = [part([3], [9, 7]), part([3], [8]), part([0], [1, 0]), part([], [])]
    merged = merge_outputs(parts)
    assert merged.arrays["sequences"].tolist() == [0, 3]
    assert np.allclose(merged.arrays["logprobs"], [0, 0.1, 0.7, 0.8, 0.9])
    gradients = [part["logprobs"] for part in split(merged, {"logprobs": merged.arrays["logprobs"]})]
    for own, message in zip(gradients, parts):
        assert np.allclose(own, message.arrays["logprobs"])


@pytest.mark.parametrize("groups", [1, 2, 3, 11])
def test_a_plan_has_each_sequence_once_and_as_many_rounds_for_all(groups):
    sequences = sample_sequences()
    rounds = plan(sequences, groups, 20)
    assert all(len(batches) == groups for batches in rounds)
    planned = sorted(s for batches in rounds for batch in batches for s in batch)
    assert planned == [s for s in range(len(sequences)) if len(sequences.places(s))]
    totals = [sum(len(sequences.ids(s)) for batches in rounds for s in batches[g]) for g in range(groups)]
    longest = max(len(sequences.ids(s)) for s in range(len(sequences)))
    assert max(totals) - min(totals) <= 2 * longest

"""The start and the end of a Ray cluster, with a program that stands in for `ray start`."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hone_verl import ray_process
from hone_worker.errors import RunFailure

# What Ray 2.60 writes when its agents start too slowly.
FATAL = (
    "[2026-11-23 20:57:30,451 C 1442 1442] (raylet) node_manager.cc:3576:  An unexpected system state has occurred. "
    "Please report this issue. Check failed: statussetor3576.has_value() Timed out waiting for file "
    "/tmp/session/metrics_agent_port_589cc"
)
# Like `ray start --block`: it does not notice that its raylet has ended. Its agent has a group of its own, and a title.
RAY = """
import os, subprocess, sys, time
from pathlib import Path
options = dict(option.removeprefix("--").split("=") for option in sys.argv[2:])
folder, here = Path(options["temp-dir"]), Path(sys.argv[1])
logs = folder / "session_latest" / "logs"
logs.mkdir(parents=True)
attempt = len(list(here.glob("attempt-*"))) + 1
(here / f"attempt-{attempt}").write_text(options["port"])
agent = subprocess.Popen(
    ["ray::DashboardAgent", "-c", "import time; time.sleep(600)"], executable=sys.executable,
    start_new_session=True, stderr=(logs / "dashboard_agent.err").open("w"),
)
print("agent", agent.pid, flush=True)
raylet = subprocess.Popen([str(here / "raylet"), "succeed" if attempt > int((here / "failures").read_text()) else str(logs)])
time.sleep(0.2)
if attempt > int((here / "failures").read_text()):
    print("Ray runtime started.", flush=True)
time.sleep(600)
"""
RAYLET = """#!/bin/sh
[ "$1" = succeed ] && exec sleep 600
echo '%s' > "$1/raylet.err"
exit 1
"""


def is_alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


@pytest.fixture
def ray(tmp_path: Path) -> ray_process.RayProcess:
    (tmp_path / "ray.py").write_text(RAY)
    (tmp_path / "raylet").write_text(RAYLET % FATAL)
    (tmp_path / "raylet").chmod(0o755)
    made = ray_process.RayProcess((sys.executable, str(tmp_path / "ray.py"), str(tmp_path)))
    yield made
    made.end()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_raylet_that_ends_during_the_start_is_noticed_and_its_agents_are_ended(ray, tmp_path):
    (tmp_path / "failures").write_text("1")
    retries: list[str] = []
    begin = time.monotonic()
    address = ray.start({}, tmp_path / "logs" / "ray.log", retries.append)
    assert time.monotonic() - begin < 60  # `ray start` would wait for 300 s
    assert address == f"127.0.0.1:{(tmp_path / 'attempt-2').read_text()}"
    reason = "statussetor3576.has_value() Timed out waiting for file /tmp/session/metrics_agent_port_589cc"
    assert retries == [f"Ray did not start, because its raylet ended: {reason}; attempt 2 of 4"]
    agents = [int(pid) for pid in re.findall(r"agent (\d+)", (tmp_path / "logs" / "ray.log").read_text())]
    assert [is_alive(pid) for pid in agents] == [False, True]
    ray.end()
    assert [is_alive(pid) for pid in (*agents, ray.pid)] == [False, False, False]
    assert not Path(f"/tmp/hone-ray-{os.getpid()}").exists()


def test_after_the_last_attempt_the_reason_is_given(ray, tmp_path, monkeypatch):
    monkeypatch.setattr(ray_process, "_STARTS", 1)
    (tmp_path / "failures").write_text("1")
    with pytest.raises(RunFailure, match="in 1 attempts; at the last, its raylet ended: .*Timed out waiting for file"):
        ray.start({}, tmp_path / "ray.log", print)


@pytest.mark.parametrize(
    ("output", "reason"),
    [("one\ntwo\nthree\n\nfour\n", "its output ends with: two / three / four"), ("", "it wrote no message"), (None, "it wrote no message")],
)
def test_the_reason_of_a_raylet_names_no_file_of_the_removed_folder(tmp_path, output, reason):
    (tmp_path / "raylet.err").write_text("\n")
    if output is not None:
        (tmp_path / "raylet.out").write_text(output)
    assert ray_process._reason(tmp_path) == reason


def test_the_agents_of_another_cluster_are_left_alone(ray, tmp_path):
    (tmp_path / "failures").write_text("0")
    other = f"--log-dir={Path(f'/tmp/hone-ray-{os.getpid()}1')}/logs"
    neighbor = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", other])
    try:
        ray.start({}, tmp_path / "ray.log", print)
        ray.end()
        assert neighbor.poll() is None
    finally:
        neighbor.send_signal(signal.SIGKILL)
        neighbor.wait()

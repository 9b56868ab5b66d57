"""The proof for GPUs runs to its end, in a small form on a simulated device, and its table of memory is up to date."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NIGHTLY = bool(os.environ.get("HONE_NIGHTLY"))
PARTS = ["tests", "attention", "trainer-small", "trainer-large", "sampler", "grpo"] if NIGHTLY else ["trainer-large", "sampler"]


def test_the_proof_runs_on_a_simulated_device(tmp_path):
    command = [sys.executable, str(ROOT / "scripts/proofs/gpu/main.py"), "--small", "--out", str(tmp_path), "--parts", ",".join(PARTS)]
    environment = {**os.environ, "HONE_TEST_DEVICE": "simulated", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    proof = json.loads((tmp_path / "gpu.json").read_text())
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert proof["device"] == "no GPU (simulated)"
    assert {row["part"] for row in proof["rows"]} == {part.split("-")[0] for part in PARTS}
    results = [row for row in proof["rows"] if "skipped" not in row]
    assert results and all(row["values"] for row in results)
    speeds = [row["values"]["tokens/s"] for row in results if row["part"] in ("trainer", "sampler")]
    assert len(speeds) >= 3 and min(speeds) > 0
    table = (tmp_path / "gpu.md").read_text()
    assert all(f"| {row['part']} | {row['what']} |" in table for row in proof["rows"])


def test_an_unknown_part_is_refused(tmp_path):
    command = [sys.executable, str(ROOT / "scripts/proofs/gpu/main.py"), "--parts", "speed", "--out", str(tmp_path / "none")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2 and "unknown parts: speed" in done.stderr and not (tmp_path / "none").exists()


def test_the_guides_table_is_the_arithmetics():
    spec = importlib.util.spec_from_file_location("memory_table", ROOT / "scripts/maintain/memory-table.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    rows = json.loads(module.FILE.read_text())
    cases = [(name, *case) for name in module.MODELS for case in module.CASES]
    assert [(row["model"], row["trains"], row["optimizer"], row["tokens"]) for row in rows] == [
        (name, adapter["kind"], optimizer, tokens) for name, adapter, optimizer, tokens in cases
    ]
    for row, case in list(zip(rows, cases))[:: 1 if NIGHTLY else 7]:
        assert row == module.row(*case)

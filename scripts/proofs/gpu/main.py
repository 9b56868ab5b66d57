"""The local engine on a GPU: `npm run proof -- gpu`, or `python3 scripts/proofs/gpu/main.py` where Node's packages are missing.

Needs only Python with torch, transformers, peft and safetensors (pytest for the worker's tests, TRL for the comparison), no network and
less than ten minutes. Each part runs in a process of its own and ends within its time; what has run is written after each part.

    --out FOLDER    gpu.json and gpu.md (default: gpu-proof)
    --parts a,c     tests, attention, trainer-small, trainer-large, sampler, grpo (default: all)
    --small         tiny shapes on the CPU, or on a simulated device with HONE_TEST_DEVICE=simulated: shows that the proof runs
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
WORKER = ROOT / "worker"

SECONDS = {"tests": 150, "attention": 100, "trainer-small": 150, "trainer-large": 150, "sampler": 80, "grpo": 120}
"""The limit of each part, unless the shapes are small."""
ALL_SECONDS = 585

TESTS = ["outputs", "policies", "sampling_exact", "sampling_flow", "sampling_draw", "flex", "sdpa", "adamw"]
QUICK_TESTS = ["adamw"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("gpu-proof"))
    parser.add_argument("--parts", default=",".join(SECONDS))
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    unknown = set(options.parts.split(",")) - set(SECONDS)
    if unknown:
        parser.error(f"unknown parts: {', '.join(sorted(unknown))}; parts are {', '.join(SECONDS)}")
    options.out.mkdir(parents=True, exist_ok=True)
    begin = time.monotonic()
    proof = {"small": options.small, "python": platform.python_version(), "rows": []}
    for part in options.parts.split(","):
        left = ALL_SECONDS - (time.monotonic() - begin)
        # The small form shows that the proof runs, on machines that may be busy.
        limit = 3600 if options.small else min(SECONDS[part], left)
        print(f"=== {part}", flush=True)
        rows = run(part, limit, options.small) if limit > 20 else [skipped(part, "no time is left")]
        machine = [row for row in rows if row["part"] == "machine"]
        proof |= machine[0]["values"] if machine else {}
        proof["rows"] += [row for row in rows if row["part"] != "machine"]
        proof["seconds"] = round(time.monotonic() - begin)
        (options.out / "gpu.json").write_text(json.dumps(proof, indent=1) + "\n")
        (options.out / "gpu.md").write_text(table(proof))
    print(table(proof), flush=True)
    return 1 if any("failed" in row for row in proof["rows"]) else 0


def run(part: str, seconds: float, small: bool) -> list[dict]:
    """The rows that a part prints. A row has `part`, `what`, and `values`, `skipped` or `failed`."""
    if part == "tests":
        return [tests(seconds, small)]
    environment = {**os.environ, "PYTHONPATH": search_path(), "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, str(HERE / "parts.py"), part, *(["--small"] if small else [])]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    problem = ""
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        output, _ = process.communicate()
        problem = f"stopped after {seconds:.0f} s"
    print(output, end="", flush=True)
    rows = [json.loads(line) for line in output.splitlines() if line.startswith("{") and line.endswith("}")]
    if process.returncode != 0:
        rows.append({"part": part, "what": "the rest", "failed": problem or f"exit code {process.returncode}"})
    return rows


def tests(seconds: float, small: bool) -> dict:
    """The worker's tests on the device."""
    row = {"part": "tests", "what": "the worker's tests on the device"}
    try:
        import pytest  # noqa: F401
    except ImportError:
        return {**row, "skipped": "pytest is not installed"}
    names = QUICK_TESTS if small else TESTS
    files = [str(WORKER / "tests" / f"test_{name}.py") for name in names if (WORKER / "tests" / f"test_{name}.py").exists()]
    device = os.environ.get("HONE_TEST_DEVICE", "cpu" if small else "cuda")
    environment = {**os.environ, "HONE_TEST_DEVICE": device, "PYTHONPATH": search_path()}
    command = [sys.executable, "-m", "pytest", "-q", "--maxfail=20", "-p", "no:cacheprovider", "-W", "ignore", *files]
    try:
        done = subprocess.run(command, env=environment, cwd=WORKER, timeout=seconds, capture_output=True, text=True)
    except subprocess.TimeoutExpired as late:
        return {**row, "failed": f"stopped after {seconds:.0f} s: {str(late.stdout)[-300:]}"}
    print(done.stdout[-3000:], flush=True)
    last = done.stdout.strip().split("\n")[-1]
    return {**row, "values": {"result": last}} if done.returncode == 0 else {**row, "failed": last}


def search_path() -> str:
    return os.pathsep.join([str(WORKER), str(WORKER / "tests"), *filter(None, [os.environ.get("PYTHONPATH")])])


def skipped(part: str, reason: str) -> dict:
    return {"part": part, "what": part, "skipped": reason}


def table(proof: dict) -> str:
    """One table of all rows."""
    head = f"{proof.get('device', 'unknown device')}, torch {proof.get('torch', '?')}, transformers {proof.get('transformers', '?')}"
    lines = [f"{head}, {proof.get('seconds', 0)} s", "", "| part | what | result |", "|---|---|---|"]
    for row in proof["rows"]:
        values = ", ".join(f"{name} {value}" for name, value in row.get("values", {}).items())
        result = values or (f"skipped: {row['skipped']}" if "skipped" in row else f"FAILED: {row.get('failed')}")
        lines.append(f"| {row['part']} | {row['what']} | {result} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())

"""The tests in sdk/ need Tinker's SDK and a server (src/apps/server/sdk.e2e.ts runs them), those in verl/ an environment with verl
(src/base/python.verl-driver.e2e.ts). `HONE_TEST_DEVICE=cuda` runs the worker's tests on a GPU, `HONE_TEST_DEVICE=simulated` on
the device of simulated_device.py."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

if os.environ.get("HONE_TEST_DEVICE") == "simulated":
    from simulated_device import install

    install()

_warm: list[tuple[subprocess.Popen, str]] = []


def pytest_configure(config):
    """With `-n`, the workers that tests start are forks (warm_python.py)."""
    if hasattr(config, "workerinput") or not config.getoption("numprocesses") or sys.platform != "linux":
        return
    folder = tempfile.mkdtemp(prefix="hone-python-")
    command = [sys.executable, str(Path(__file__).with_name("warm_python.py")), folder]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": "1"})
    _warm.append((server, folder))
    if server.stdout.readline():
        os.environ["HONE_WARM_PYTHON"] = f"{folder}/python"


def pytest_unconfigure():
    for server, folder in _warm:
        server.communicate()
        shutil.rmtree(folder)


collect_ignore = ["sdk", "verl"]


def pytest_collection_modifyitems(items):
    """The file that takes longest begins first, so that two processes end at about the same time."""
    items.sort(key=lambda item: item.path.name != "test_sharded.py")

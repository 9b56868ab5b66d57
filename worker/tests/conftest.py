"""The tests in sdk/ need Tinker's SDK and a server (src/server/sdk.e2e.ts runs them), those in verl/ an environment with verl
(src/python/verl-driver.e2e.ts). `HONE_TEST_DEVICE=cuda` runs the worker's tests on a GPU, `HONE_TEST_DEVICE=simulated` on
the device of simulated_device.py."""

import os

if os.environ.get("HONE_TEST_DEVICE") == "simulated":
    from simulated_device import install

    install()

collect_ignore = ["sdk", "verl"]


def pytest_collection_modifyitems(items):
    """The file that takes longest begins first, so that two processes end at about the same time."""
    items.sort(key=lambda item: item.path.name != "test_sharded.py")

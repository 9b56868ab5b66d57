"""The tests in sdk/ need Tinker's SDK and a server (src/server/sdk.e2e.ts runs them), those in verl/ an environment with verl
(src/python/verl-driver.e2e.ts)."""

collect_ignore = ["sdk", "verl"]


def pytest_collection_modifyitems(items):
    """The file that takes longest begins first, so that two processes end at about the same time."""
    items.sort(key=lambda item: item.path.name != "test_sharded.py")

"""Reports an update of rollout servers that will not end: verl's workers wait forever for a server that does not answer."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection

# Between two checks of the servers. A server that fails two checks in a row has ended.
_CHECK_SECONDS = 2.0


@contextmanager
def watched(
    addresses: list[str], broken: tuple[int, ...], version: int, limit: float, report: Callable[[str], None]
) -> Iterator[None]:
    """During the block, `report` gets a message if a server ends (`broken`: HTTP codes of `/health` that say so), or if
    the block takes longer than `limit` seconds."""
    over = threading.Event()

    def watch() -> None:
        deadline, failed = time.monotonic() + limit, set()
        while not over.wait(min(_CHECK_SECONDS, limit)):
            before, failed = failed, {address for address in addresses if _has_failed(address, broken)}
            if over.is_set():
                return
            for address in before & failed:
                report(
                    f"verl's rollout server at {address} ended while it loaded version {version} of the weights; "
                    "worker.log in the run folder has its output"
                )
            if time.monotonic() >= deadline:
                report(
                    f"verl's rollout servers did not load version {version} of the weights within {limit:g} s, the limit "
                    "of actor_rollout_ref.nccl_timeout; worker.log in the run folder has their output"
                )
                return

    threading.Thread(target=watch, name="servers", daemon=True).start()
    try:
        yield
    finally:
        over.set()


def _has_failed(address: str, broken: tuple[int, ...]) -> bool:
    """A server that is busy may not answer in time."""
    connection = HTTPConnection(address, timeout=_CHECK_SECONDS)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status in broken
    except TimeoutError:
        return False
    except OSError:
        return True
    finally:
        connection.close()

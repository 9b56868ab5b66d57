import random
import socket
from contextlib import suppress

from .errors import RunFailure

# Below the ports that systems give to outgoing connections, which could take one before it is used.
_RANGE = range(15000, 32768)


def free_port() -> int:
    """A TCP port of this machine on which nothing listens. Raises RunFailure if there is none."""
    for port in random.sample(_RANGE, len(_RANGE)):
        with socket.socket() as one, suppress(OSError):
            one.bind(("", port))
            return port
    raise RunFailure(f"no port from {_RANGE.start} to {_RANGE.stop - 1} is free")

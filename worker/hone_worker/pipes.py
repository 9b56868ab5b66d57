"""The pipes of a process that speaks the protocol. Imports nothing slow."""

import os
import signal
import sys
from collections.abc import Callable

from .channel import Channel
from .parent import die_with_parent


def open_channel(on_end: Callable[[Exception | None], None] | None = None) -> Channel:
    """Reserves standard input and output for the protocol: a library's prints go to the log, and its reads
    get nothing. Must run before anything else is imported. `on_end` ends the process when the input has ended."""
    source, target = os.dup(0), os.dup(1)
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
    os.dup2(2, 1)
    # The terminal sends Ctrl-C to every process; the parent decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    die_with_parent()
    channel = Channel(os.fdopen(source, "rb", buffering=1 << 20), target, on_end or _end)
    channel.start()
    return channel


def serve(run: Callable[[Channel], None]) -> None:
    """A worker's main program."""
    channel = open_channel()
    try:
        run(channel)
    except SystemExit:
        sys.stderr.flush()
        os._exit(0)  # unloading torch would take seconds


def _end(broken: Exception | None) -> None:
    """Called by the reader thread. Does not wait for the main thread, which may be deep in a matrix
    product."""
    if broken is not None:
        print(f"hone_worker: {broken}", file=sys.stderr, flush=True)
    os._exit(0 if broken is None else 1)

"""`python -m hone_worker`: speaks worker/PROTOCOL.md over standard input and output until the input ends."""

from __future__ import annotations

import os
import signal
import sys


def _claim_pipes() -> tuple[int, int]:
    """Takes standard input and output for the protocol. What a library prints goes to the log, and what one
    reads is empty, so that neither breaks a frame. Must come before anything else is imported."""
    source, target = os.dup(0), os.dup(1)
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
    os.dup2(2, 1)
    return source, target


def main() -> None:
    source, target = _claim_pipes()
    # Ctrl-C reaches everybody at the terminal; what it means is decided by who started this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    from .parent import die_with_parent

    die_with_parent()

    from .channel import Channel
    from .server import Server

    def end(broken: Exception | None) -> None:
        if broken is not None:
            print(f"hone_worker: {broken}", file=sys.stderr, flush=True)
        # Without the others' consent: they may be deep in a matrix product, and nobody is left to hear of it.
        os._exit(0 if broken is None else 1)

    channel = Channel(os.fdopen(source, "rb", buffering=1 << 20), target, end)
    channel.start()
    try:
        Server(channel).serve()
    except SystemExit:
        # Unwinding is done; taking torch apart would take seconds and help nobody.
        sys.stderr.flush()
        os._exit(0)


if __name__ == "__main__":
    main()

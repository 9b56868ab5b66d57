"""`python -m hone_worker`: speaks worker/PROTOCOL.md over standard input and output until the input ends."""

import os
import sys

from .pipes import open_channel


def main() -> None:
    channel = open_channel()
    try:
        from .server import Server  # imports torch, which takes seconds: the reader already runs

        Server(channel).serve()
    except SystemExit:
        sys.stderr.flush()
        os._exit(0)  # unloading torch would take seconds


if __name__ == "__main__":
    main()

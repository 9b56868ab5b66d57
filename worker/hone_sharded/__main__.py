"""`python -m hone_sharded`: starts `HONE_RANKS` ranks, and speaks worker/PROTOCOL.md for them until its input ends."""

import os
import sys

from hone_worker.pipes import open_channel

from .supervisor import Supervisor


def main() -> None:
    channel = open_channel()
    try:
        Supervisor(channel, int(os.environ["HONE_RANKS"])).serve()
    except SystemExit:
        sys.stderr.flush()
        os._exit(0)


if __name__ == "__main__":
    main()

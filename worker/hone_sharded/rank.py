"""`python -m hone_sharded.rank`: one of the processes that share the model. The supervisor speaks to it by the worker's
protocol; `HONE_RANK` is its number."""

import os
import sys

from hone_worker.pipes import open_channel


def main() -> None:
    channel = open_channel()
    try:
        from .operations import Operations  # imports torch, which takes seconds: the reader already runs

        operations = Operations(channel, int(os.environ["HONE_RANK"]), int(os.environ["HONE_RANKS"]))
        while True:
            operations.answer(channel.receive(wait=True))
    except SystemExit:
        sys.stderr.flush()
        os._exit(0)


if __name__ == "__main__":
    main()

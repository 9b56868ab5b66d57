"""`python -m hone_sharded.rank`: one of the processes that share the model. The supervisor talks to it with the
worker's protocol; `HONE_RANK` is its number."""

import os

from hone_worker.channel import Channel, serve


def run(channel: Channel) -> None:
    from .operations import RankOperations  # imports torch, which takes seconds, while the reader already runs

    operations = RankOperations(channel, int(os.environ["HONE_RANK"]), int(os.environ["HONE_RANKS"]))
    while True:
        operations.answer(channel.receive(wait=True))


if __name__ == "__main__":
    serve(run)

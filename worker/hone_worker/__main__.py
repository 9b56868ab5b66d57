"""`python -m hone_worker`: speaks worker/PROTOCOL.md over standard input and output until the input ends."""

from .channel import Channel
from .pipes import serve


def run(channel: Channel) -> None:
    from .server import Server  # imports torch, which takes seconds: the reader already runs

    Server(channel).serve()


if __name__ == "__main__":
    serve(run)

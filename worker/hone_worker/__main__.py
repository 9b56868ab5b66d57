"""`python -m hone_worker`: speaks worker/PROTOCOL.md over standard input and output until the input ends."""

from .channel import Channel, serve

# These take no time: all that have arrived run before the next decode step.
_QUICK = frozenset({"sample", "put_media", "abort", "stats"})


def run(channel: Channel) -> None:
    """Runs requests in order, and a decode step of all samples between two of them."""
    from .local_operations import LocalOperations  # imports torch, which takes seconds: the reader already runs

    operations = LocalOperations(channel)
    while True:
        message = channel.receive(wait=not operations.sampling)
        while message is not None:
            operations.answer(message)
            message = channel.receive(wait=False) if message.op in _QUICK else None
        if operations.sampling:
            operations.sample_step()


if __name__ == "__main__":
    serve(run)

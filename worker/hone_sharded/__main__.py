"""`python -m hone_sharded`: starts `HONE_RANKS` ranks, and implements worker/PROTOCOL.md with them."""

import os

from hone_worker.channel import serve

from .supervisor import Supervisor

if __name__ == "__main__":
    serve(lambda channel: Supervisor(channel, int(os.environ["HONE_RANKS"])).serve())

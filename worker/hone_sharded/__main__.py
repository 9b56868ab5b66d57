"""`python -m hone_sharded`: starts `HONE_RANKS` ranks, and speaks worker/PROTOCOL.md for them until its input ends."""

import os

from hone_worker.pipes import serve

from .supervisor import Supervisor

if __name__ == "__main__":
    serve(lambda channel: Supervisor(channel, int(os.environ["HONE_RANKS"])).serve())

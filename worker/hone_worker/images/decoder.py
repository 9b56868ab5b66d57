"""`python -m hone_worker.images.decoder`: decodes the files that `decoders.decode` sends, until the input ends."""

import json
import resource
import signal
import sys
from typing import Any

from ..errors import UnusableImage
from .decode import open_image
from .decoders import REQUEST

# The largest photos need less than 1 GiB.
_MEMORY = 2 << 30


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal sends Ctrl-C to every process
    if sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    source, target = sys.stdin.buffer, sys.stdout.buffer
    while start := source.read(REQUEST.size):
        length, most_pixels, seconds = REQUEST.unpack(start)
        answer, pixels = _decode(source.read(length), most_pixels, seconds)
        target.write(json.dumps({**answer, "bytes": len(pixels)}).encode() + b"\n" + pixels)
        target.flush()


def _decode(encoded: bytes, most_pixels: int, seconds: float) -> tuple[dict[str, Any], bytes]:
    signal.setitimer(signal.ITIMER_PROF, seconds)  # the kernel then ends this process with SIGPROF
    try:
        picture = open_image(encoded, most_pixels)
        return {"size": picture.size, "transparent": picture.info["transparent"]}, picture.tobytes()
    except UnusableImage as unusable:
        return {"error": str(unusable)}, b""
    except MemoryError:
        return {"error": "it cannot be decoded: it needs too much memory"}, b""
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


if __name__ == "__main__":
    main()

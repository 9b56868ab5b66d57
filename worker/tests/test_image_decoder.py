"""Images are decoded in other processes, within a time and a memory."""

from __future__ import annotations

import re
import signal
import struct
import sys
import threading
import time
import zlib
from pathlib import Path

import pytest
from hone_worker.errors import RunFailure, Stopped, UnusableImage
from hone_worker.images import decoder
from hone_worker.images.decoder import decode, open_image
from hostile_images import chunk, png, progressive
from PIL import ImageOps

SMALL = png(2, 1, zlib.compress(bytes([0, 1, 2, 3, 4, 5, 6])))


def test_an_image_that_takes_too_long_fails_alone() -> None:
    with pytest.raises(UnusableImage, match="decoding it takes more than 0.2 s of processor time"):
        decode(progressive(1024, 1024, 20_000), cpu_seconds=0.2)
    assert decode(SMALL).tobytes() == bytes([1, 2, 3, 4, 5, 6])


def test_the_slowest_image_that_the_trainer_accepts_is_decoded_in_time() -> None:
    """It has the limits of src/images: 100 scans, 33 million pixels."""
    assert decode(progressive(7680, 4320, 99)).size == (7680, 4320)


def test_decoding_ends_when_nobody_needs_the_image() -> None:
    stop = threading.Event()
    threading.Timer(0.2, stop.set).start()
    begin = time.monotonic()
    with pytest.raises(Stopped):
        decode(progressive(4096, 4096, 20_000), stop=stop)
    assert time.monotonic() - begin < 5


def test_images_wait_for_a_free_process_and_stop_waiting() -> None:
    slow = progressive(4096, 4096, 20_000)
    ends = [threading.Event() for _ in range(3)]
    found: list[type] = []

    def run(end: threading.Event) -> None:
        try:
            decode(slow, stop=end)
        except Stopped as stopped:
            found.append(type(stopped))

    threads = [threading.Thread(target=run, args=(end,)) for end in ends]
    for thread in threads:
        thread.start()
    for end in reversed(ends):
        end.set()
    for thread in threads:
        thread.join(5)
    assert found == [Stopped] * 3


@pytest.mark.parametrize(
    "ended_by, error, sentence",
    [
        (signal.SIGSEGV, UnusableImage, r"it crashes the decoder \(SIGSEGV\)"),
        (signal.SIGKILL, RunFailure, "the process that decodes images was ended by SIGKILL"),
    ],
)
def test_a_decoder_that_ends_is_replaced(ended_by: int, error: type[Exception], sentence: str) -> None:
    decode(SMALL)
    child = decoder._idle[-1]
    with pytest.raises(error, match=sentence):
        threading.Timer(0.2, child.send_signal, [ended_by]).start()
        decode(progressive(4096, 4096, 20_000))
    assert decode(SMALL).size == (2, 1)
    decoder._idle[-1].kill()  # while it waits
    decoder._idle[-1].wait()
    assert decode(SMALL).size == (2, 1)


def test_memory_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(ImageOps, "exif_transpose", exhausted)
    with pytest.raises(UnusableImage, match="it cannot be decoded: it needs too much memory"):
        open_image(SMALL)
    if sys.platform == "linux":
        decode(SMALL)
        limits = Path(f"/proc/{decoder._idle[-1].pid}/limits").read_text()
        assert re.search(r"Max address space\s+2147483648", limits)


def test_a_damaged_image_writes_nothing_into_the_log(capfd: pytest.CaptureFixture[str]) -> None:
    """An EXIF block of 60 KB wrote 5,000 warnings."""
    entries = b"".join(struct.pack(">HHLL", 0x8000 + i, 1, 40_000, 8) for i in range(5000))
    exif = chunk(b"eXIf", b"MM\0*" + struct.pack(">LH", 8, 5000) + entries + bytes(4))
    decode(png(2, 1, zlib.compress(bytes(7)), before=exif))
    assert capfd.readouterr().err == ""

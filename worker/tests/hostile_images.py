"""Small image files that take a decoder long."""

from __future__ import annotations

import struct
import zlib


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int, data: bytes, depth: int = 8, color: int = 2, before: bytes = b"") -> bytes:
    """`before`: chunks between the header and the pixels."""
    head = struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + before + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def progressive(width: int, height: int, scans: int) -> bytes:
    """A gray progressive JPEG. Each scan visits all blocks, and needs a few bytes."""
    blocks = -(-width // 8) * -(-height // 8)
    parts = [b"\xff\xd8", b"\xff\xdb", struct.pack(">H", 67), b"\0", bytes([1] * 64)]
    parts += [b"\xff\xc2", struct.pack(">HBHHB", 11, 8, height, width, 1), bytes([1, 0x11, 0])]
    # One code of one bit for each kind of coefficient: a difference of 0; a run of 2^14 and more empty blocks.
    for table, symbol in ((0x00, 0x00), (0x10, 0xE0)):
        parts += [b"\xff\xc4", struct.pack(">H", 20), bytes([table, 1, *[0] * 15, symbol])]
    parts += [b"\xff\xda", struct.pack(">H", 8), bytes([1, 1, 0, 0, 0, 0]), bytes(-(-blocks // 8))]
    bits = ("0" + "1" * 14) * -(-blocks // 32767)
    bits += "1" * (-len(bits) % 8)
    runs = int(bits, 2).to_bytes(len(bits) // 8, "big").replace(b"\xff", b"\xff\0")
    parts += [b"\xff\xda", struct.pack(">H", 8), bytes([1, 1, 0, 1, 63, 0]), runs] * scans
    return b"".join([*parts, b"\xff\xd9"])

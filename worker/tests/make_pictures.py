"""`python make_pictures.py FOLDER`: writes PNG and JPEG files of all forms that are accepted, for fuzzing."""

from __future__ import annotations

import sys
import zlib
from pathlib import Path

import numpy as np
from hostile_images import chunk, png, progressive
from PIL import Image, PngImagePlugin


def main(folder: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (29, 41, 4), np.uint8)
    pixels[8:20] = 90
    rgba = Image.fromarray(pixels)
    rgb = rgba.convert("RGB")
    turned = Image.Exif()
    turned[0x0112] = 6
    text = PngImagePlugin.PngInfo()
    text.add_text("note", "x" * 2000, zip=True)
    text.add_itxt("title", "y" * 50, "en", "t")
    profile = bytes(range(256)) * 2
    frames = {"save_all": True, "append_images": [Image.new("RGB", (41, 29), "red")]}
    saved = {
        "baseline.jpg": (rgb, {}),
        "sampled.jpg": (rgb, {"subsampling": 2, "restart_marker_blocks": 2}),
        "progressive.jpg": (rgb, {"progressive": True, "exif": turned, "icc_profile": profile}),
        "gray.jpg": (rgb.convert("L"), {"progressive": True}),
        "cmyk.jpg": (rgb.convert("CMYK"), {"quality": 100}),
        "camera.jpg": (rgb, {"format": "MPO", **frames}),
        "rgb.png": (rgb, {"pnginfo": text, "icc_profile": profile}),
        "rgba.png": (rgba, {"exif": turned}),
        "palette.png": (rgb.quantize(16), {"transparency": 3}),
        "bits.png": (rgb.convert("1"), {}),
        "gray16.png": (Image.fromarray(pixels[..., 0].astype(np.uint16) * 257), {}),
        "animated.png": (rgb, frames),
    }
    for name, (image, options) in saved.items():
        image.save(folder / name, **options)
    rows = b"".join(bytes([0]) + bytes(range(3 * 9)) for _ in range(9 * 3))
    head = png(9, 9, zlib.compress(rows))
    (folder / "interlaced.png").write_bytes(head[:8] + chunk(b"IHDR", head[16:28] + b"\x01") + head[33:])
    (folder / "scans.jpg").write_bytes(progressive(200, 100, 30))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

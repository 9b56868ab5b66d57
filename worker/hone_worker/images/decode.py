"""Decodes PNG and JPEG files. Raises UnusableImage for every file that cannot be used."""

from io import BytesIO

from PIL import Image, ImageOps

from ..errors import UnusableImage

MOST_PIXELS = 1 << 25
_SIGNATURES = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff")
Image.MAX_IMAGE_PIXELS = None  # open_image has its own limit


def open_image(encoded: bytes, most_pixels: int = MOST_PIXELS) -> Image.Image:
    """The image in RGB, rotated as its EXIF data says, on white. `info["transparent"]`: white is visible through it. The
    size is checked before pixels are decoded."""
    try:
        image = Image.open(BytesIO(encoded), formats=["PNG", "JPEG"])
    except Exception:  # noqa: BLE001 - damaged files raise errors of many classes
        known = encoded.startswith(_SIGNATURES)
        reason = "its header is damaged" if known else f"its {len(encoded)} bytes are not a PNG or JPEG file"
        raise UnusableImage(reason) from None
    if image.width * image.height > most_pixels:
        raise UnusableImage(f"it has {image.width} x {image.height} pixels; the limit is {most_pixels} in all")
    # The further pictures of a camera's JPEG (MPO) are previews and maps of depth or brightness.
    if image.format == "PNG" and image.n_frames > 1:
        raise UnusableImage(f"it is animated, with {image.n_frames} frames; only still images are supported")
    if image.mode.startswith("I") or image.mode == "F":
        raise UnusableImage("it has 16 bits per channel; convert it to 8")
    try:
        upright = ImageOps.exif_transpose(image)
        transparent = _is_transparent(upright)
        picture = _on_white(upright) if transparent else upright.convert("RGB")
        picture.info["transparent"] = transparent
        return picture
    except Exception as error:  # noqa: BLE001
        why = "it needs too much memory" if isinstance(error, MemoryError) else error or type(error).__name__
        raise UnusableImage(f"it cannot be decoded: {why}") from None


def _is_transparent(image: Image.Image) -> bool:
    """A transparent color of an RGB image does not count, as in vLLM."""
    return image.mode != "RGB" and image.has_transparency_data and image.convert("RGBA").getextrema()[3][0] < 255


def _on_white(image: Image.Image) -> Image.Image:
    """As transformers' image processors and vLLM do."""
    layer = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer).convert("RGB")

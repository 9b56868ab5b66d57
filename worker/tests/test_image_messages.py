"""Images in messages of the worker's protocol, and files and messages that it refuses."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers as hf
from hone_worker.errors import UnusableImage, UserMistake, first_line
from hone_worker.images.decoder import open_image
from hone_worker.policies.registry import Policies
from hostile_images import chunk, png, progressive
from make_tiny_model import make_tokenizer
from models import load
from PIL import Image as Pillow
from sampling_helpers import folder as text_folder
from test_server import ADAM, LORA, SETTINGS, samples_of
from tiny_vision_models import _SIGLIP, _TEXT, IMAGE_TOKEN, build, picture, text
from transformers import AutoImageProcessor, AutoTokenizer, Idefics3Processor
from transformers.image_transforms import convert_to_rgb
from transformers.models.llava.image_processing_pil_llava import LlavaImageProcessorPil
from worker_client import Client, ragged


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("qwen2_vl", tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def client(folder: Path) -> Iterator[Client]:
    with Client() as client:
        loaded = client.call("load", model=str(folder), name="tiny", cache_dir=str(folder), **SETTINGS)
        assert loaded["model"]["images"] == {"placeholder": "<|image_pad|>", "placeholder_id": 3, "family": "qwen2_vl"}
        yield client


def put(client: Client, files: dict[str, bytes]) -> tuple[list[dict], list[list[int]]]:
    """Descriptions and tokens of images, by the names that stand for their hashes."""
    offsets = np.cumsum([0, *map(len, files.values())]).astype(np.int32)
    arrays = {"bytes": np.frombuffer(b"".join(files.values()), np.uint8), "offsets": offsets}
    answer, found, _ = client.answer(client.send("put_media", arrays, hashes=list(files)))
    assert answer["ok"], answer
    ends = found["offsets"].tolist()
    return answer["media"], [found["tokens"][begin:end].tolist() for begin, end in zip(ends, ends[1:])]


def saved(mode: str, form: str, color: object = 0, **options: object) -> bytes:
    file = BytesIO()
    Pillow.new(mode, (20, 28), color).save(file, form, **options)
    return file.getvalue()


def text_bomb() -> bytes:
    """A comment that unpacks to 100 MB."""
    whole = picture(1)
    comment = chunk(b"zTXt", b"note\0\0" + zlib.compress(bytes(100_000_000)))
    return whole[:33] + comment + whole[33:]


WHOLE = picture(1)
HOSTILE = {
    "nothing": (b"", "are not a PNG or JPEG file"),
    "text": (b"a picture of a cat", "are not a PNG or JPEG file"),
    "an error page": (b"<!DOCTYPE html><html></html>", "are not a PNG or JPEG file"),
    "an SVG": (b'<svg xmlns="http://www.w3.org/2000/svg"/>', "are not a PNG or JPEG file"),
    "a GIF": (saved("P", "GIF"), "are not a PNG or JPEG file"),
    "a BMP": (saved("RGB", "BMP"), "are not a PNG or JPEG file"),
    "a WebP": (saved("RGB", "WEBP"), "are not a PNG or JPEG file"),
    "a TIFF": (saved("RGB", "TIFF"), "are not a PNG or JPEG file"),
    "a PNG signature only": (WHOLE[:8], "its header is damaged"),
    "a PNG header only": (WHOLE[:33], "its header is damaged"),
    "half a PNG": (WHOLE[: len(WHOLE) // 2], "cannot be decoded"),
    "half a JPEG": (picture(1, form="JPEG")[:500], "its header is damaged"),
    "a wrong checksum": (WHOLE[:40] + b"\xff" + WHOLE[41:], "its header is damaged"),
    "pixels that are not deflate": (png(20, 28, b"not deflate"), "cannot be decoded"),
    "fewer pixels than promised": (png(20, 28, zlib.compress(bytes(10))), "cannot be decoded"),
    "no pixels": (png(0, 0, zlib.compress(b"")), "its header is damaged"),
    "a bomb": (png(60_000, 60_000, zlib.compress(b"")), "pixels; the limit is 33554432 in all"),
    "too many pixels": (png(8000, 8000, zlib.compress(b"")), "8000 x 8000 pixels; the limit is 33554432 in all"),
    "the largest size": (png(2**31 - 1, 2**31 - 1, b""), "pixels; the limit is 33554432 in all"),
    "a bomb in a comment": (text_bomb(), "its header is damaged"),
    "an animated PNG": (
        saved("RGB", "PNG", save_all=True, append_images=[Pillow.new("RGB", (20, 28), "red")]),
        "animated, with 2 frames",
    ),
    "16 bits": (saved("I;16", "PNG"), "16 bits per channel"),
    "a thread": (png(6000, 1, zlib.compress(bytes(18_001))), "refuses 6000 x 1 pixels: absolute aspect ratio"),
}


def test_files_that_are_refused_do_not_disturb_others(client: Client) -> None:
    described, tokens = put(client, {name: file for name, (file, _) in HOSTILE.items()} | {"good": WHOLE})
    for (name, (_, expected)), found in zip(HOSTILE.items(), described):
        assert set(found) == {"error"}, (name, found)
        assert expected in found["error"], (name, found)
    assert described[-1] == {"width": 20, "height": 28, "transparent": False} and len(tokens[-1]) == 8
    assert not any(tokens[:-1])


def test_pictures_of_all_usual_forms_are_read(client: Client) -> None:
    turned = Pillow.Exif()
    turned[0x0112] = 6  # the camera was turned
    forms = {
        "gray": saved("L", "PNG"),
        "one bit": saved("1", "PNG"),
        "palette": saved("P", "PNG"),
        "transparent": saved("RGBA", "PNG", (9, 9, 9, 254)),
        "transparent color": saved("P", "PNG", transparency=0),
        "opaque": saved("RGBA", "PNG", (9, 9, 9, 255)),
        "gray JPEG": saved("L", "JPEG"),
        "CMYK": saved("CMYK", "JPEG"),
        "progressive": saved("RGB", "JPEG", progressive=True),
        "with a preview": saved("RGB", "MPO", save_all=True, append_images=[Pillow.new("RGB", (10, 14))]),
        "turned": saved("RGB", "JPEG", exif=turned),
    }
    described, tokens = put(client, forms)
    sizes = [(found["width"], found["height"]) for found in described]
    assert sizes == [(20, 28)] * 10 + [(28, 20)] and all(tokens)
    transparent = [name for name, found in zip(forms, described) if found["transparent"]]
    assert transparent == ["transparent", "transparent color"]


@pytest.mark.parametrize(
    "file",
    [
        saved("RGBA", "PNG", (9, 90, 200, 100)),
        saved("LA", "PNG", (9, 100)),
        saved("P", "PNG", transparency=0),
        saved("L", "PNG", transparency=0),
        saved("RGBA", "PNG", (9, 90, 200, 255)),
    ],
)
def test_transparent_pixels_are_blended_as_by_transformers_processors(file: bytes) -> None:
    expected = convert_to_rgb(Pillow.open(BytesIO(file)), return_numpy=True)
    np.testing.assert_array_equal(np.array(open_image(file)), expected)


def test_samples_and_training_with_images(client: Client, folder: Path) -> None:
    policy = client.call("create_policy", adapter=LORA)["policy"]
    _, (one, two) = put(client, {"one": WHOLE, "two": picture(2)})
    start = text(1, 4)
    prompts = [start + one + text(2, 3), start + two + text(2, 3), text(3, 5)]
    media = {"media": ["one", "two"]}
    ranges = {"media_ranges": np.array([[0, 4, len(one)], [1, 4, len(two)]], np.int32)}
    asked = [{"max_tokens": 5, "seed": 1}] * 3
    request = client.send("sample", ragged(prompts) | ranges, policy=policy, requests=asked, **media)
    answer, _, events = client.answer(request)
    assert answer["ok"], answer
    samples = samples_of(events)
    whole = [prompt + samples[i][1]["tokens"].tolist() for i, prompt in enumerate(prompts)]
    flags = [[0] * (len(prompt) - 1) + [1] * (len(ids) - len(prompt)) for prompt, ids in zip(prompts, whole)]
    arrays = ragged(whole) | ranges | {"trained": np.array(sum(flags, []), np.uint8)}
    answer, found, _ = client.answer(client.send("forward", arrays, policy=policy, outputs=["logprobs"], **media))
    assert answer["ok"], answer
    sampled = np.concatenate([samples[i][1]["logprobs"] for i in range(3)])
    np.testing.assert_allclose(found["logprobs"], sampled, atol=1e-5)
    trained = client.send("forward_backward", arrays, policy=policy, outputs=["logprobs"], **media)
    while (event := client.receive())[0].get("event") == "outputs":
        client.send("gradient", {"logprobs": -np.ones_like(event[1]["logprobs"])}, id=trained)
    assert event[0]["ok"], event
    assert client.call("optim_step", policy=policy, **ADAM)["grad_norm"] > 0
    stats = client.call("stats")["stats"]
    assert (stats["images/features_reused"], stats["images/features_computed"]) == (4, 3)
    client.call("close_policy", policy=policy)


def test_a_slow_image_does_not_stop_samples_and_ends_with_its_client(client: Client) -> None:
    file = progressive(4096, 4096, 100_000)
    arrays = {"bytes": np.frombuffer(file, np.uint8), "offsets": np.array([0, len(file)], np.int32)}
    slow = client.send("put_media", arrays, hashes=["slow"])
    policy = client.call("create_policy", adapter={"kind": "none"})["policy"]
    _, (one,) = put(client, {"one": WHOLE})
    prompt = ragged([text(1, 4) + one]) | {"media_ranges": np.array([[0, 4, len(one)]], np.int32)}
    request = client.send("sample", prompt, policy=policy, requests=[{"max_tokens": 5}], media=["one"])
    assert client.answer(request)[0]["ok"]
    aborted = client.send("abort", media=slow)
    answers = {header["id"]: header for header, _ in (client.receive(), client.receive())}
    assert answers[slow] == {"id": slow, "ok": True, "cancelled": True}
    assert answers[aborted]["ok"]
    assert put(client, {"two": picture(2)})[1][0]


@pytest.mark.parametrize(
    "media, ranges, kind, message",
    [
        (["one", "gone"], [[0, 4, 8], [1, 4, 8]], "media", "does not have 1 of the images"),
        (["one"], [[0, 3, 8]], "user", "sequence 0 does not have the 8 tokens of image one at 3"),
        (["one"], [[0, 4, 7]], "user", "sequence 0 does not have the 8 tokens of image one at 4"),
        (["one"], [[1, 4, 8]], "user", "sequence 1 of 1"),
        (["one", "one"], [[0, 4, 8], [0, 4, 8]], "user", "sequence 0 does not have the 8 tokens"),
        (["one"], [[0, -5, 8]], "user", "sequence 0 does not have the 8 tokens of image one at -5"),
        (["one", "one"], [[0, 4, 8]], "user", "2 images, but 1 ranges"),
    ],
)
def test_images_that_do_not_fit_the_tokens(client: Client, media, ranges, kind, message) -> None:
    _, (one,) = put(client, {"one": WHOLE})
    arrays = ragged([text(1, 4) + one + text(2, 3)]) | {"media_ranges": np.array(ranges, np.int32)}
    policy = client.call("create_policy", adapter={"kind": "none"})["policy"]
    answer = client.call("sample", arrays, policy=policy, requests=[{"max_tokens": 1}], media=media)
    assert answer["error"]["kind"] == kind and message in answer["error"]["message"], answer
    if kind == "media":
        assert answer["error"]["hashes"] == ["gone"]


def test_a_model_without_an_image_processor_says_why(folder: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    for file in folder.iterdir():
        if file.name != "preprocessor_config.json":
            (bare / file.name).symlink_to(file)
    model = load(bare)
    assert model.info()["images"] is None and "preprocessor_config.json" in model.info()["images_reason"]
    with pytest.raises(UserMistake, match="the vision part of tiny cannot be trained: .*preprocessor_config.json"):
        Policies(model).create({**LORA, "train_vision": True})
    vision = load(bare, processor=str(folder), most_pixels=500).vision
    with pytest.raises(UnusableImage, match="the limit is 500 in all"):
        vision.read("large", WHOLE)
    assert vision.read("small", picture(1, 16, 16)).size == (16, 16)


def test_a_processor_without_its_settings_is_refused(tmp_path: Path) -> None:
    text_part = hf.LlamaConfig(**_TEXT, hidden_size=32)
    vision_part = hf.CLIPVisionConfig(**{name: value for name, value in _SIGLIP.items() if name != "initializer_range"})
    config = hf.LlavaConfig(vision_config=vision_part, text_config=text_part, image_token_index=IMAGE_TOKEN)
    hf.AutoModelForImageTextToText.from_config(config, dtype=torch.float32).save_pretrained(tmp_path)
    LlavaImageProcessorPil(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}).save_pretrained(tmp_path)
    make_tokenizer(["<|pad|>", "<|im_start|>", "<|im_end|>", "<image>"]).save_pretrained(tmp_path)
    reason = load(tmp_path).info()["images_reason"]
    assert reason.startswith("images for models of type llava are not supported here (")
    assert reason.endswith("docs/reference/models.md lists others")
    assert first_line(ValueError("\n  \nthe cause\nmore")) == "the cause" and first_line(KeyError()) == "KeyError"


def test_a_text_model_refuses_images() -> None:
    with Client() as client:
        path = str(text_folder("llama"))
        model = client.call("load", model=path, name="text", cache_dir=path, **SETTINGS)["model"]
        assert model["images"] is None and "images_reason" not in model
        arrays = {"bytes": np.frombuffer(WHOLE, np.uint8), "offsets": np.array([0, len(WHOLE)], np.int32)}
        refused = client.call("put_media", arrays, hashes=["one"])["error"]
        assert refused["kind"] == "user"
        assert refused["message"] == "text cannot read images: LlamaForCausalLM reads only text"


def test_tokens_are_those_of_transformers_processor(tmp_path: Path) -> None:
    """With one tile, and with several rows and columns."""
    path = build("idefics3", tmp_path)
    vision = load(path).vision
    tokenizer, pixels = AutoTokenizer.from_pretrained(path), AutoImageProcessor.from_pretrained(path, backend="pil")
    processor = Idefics3Processor(pixels, tokenizer, image_seq_len=4)
    for seed, (width, height) in enumerate([(32, 32), (64, 30), (40, 64)]):
        file = picture(seed, width, height)
        whole = processor(text="ab<image>c", images=[[Pillow.open(BytesIO(file))]])["input_ids"][0]
        around = [tokenizer("ab").input_ids, tokenizer("c").input_ids]
        assert whole == around[0] + vision.read(str(seed), file).tokens.tolist() + around[1]

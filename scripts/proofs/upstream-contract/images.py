"""Records what vLLM answers to requests with images, beside the log-probabilities of transformers, for
sampler.test.ts.

    export PYTHONPATH=worker:worker/tests
    python scripts/proofs/upstream-contract/images.py make DIRECTORY
    vllm serve DIRECTORY/idefics3 --served-model-name policy --dtype float32 --port 8000 --enable-scale-out
    python scripts/proofs/upstream-contract/images.py record DIRECTORY http://127.0.0.1:8000 "vLLM 0.32.0"
    npx biome format --write src/backends/servers/fixtures
"""

from __future__ import annotations

import hashlib
import json
import sys
from base64 import b64encode
from pathlib import Path
from urllib.request import Request, urlopen

import tiny_vision_models as tiny
import torch
from hone_worker.images.vision import open_vision
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil

FIXTURE = Path(__file__).parents[3] / "src/backends/servers/fixtures/vllm-images.json"
PATH = "/inference/v1/generate"
FILES = [tiny.picture(1, 32, 32), tiny.picture(2, 32, 32, "JPEG")]
PARAMS = {
    "maxTokens": 6, "temperature": 1, "topP": 1, "topK": -1, "minP": 0, "stopIds": [2], "stopStrings": [], "seed": 5,
}  # fmt: skip
ASKED = {
    "max_tokens": 6, "temperature": 1, "top_p": 1, "top_k": 0, "min_p": 0, "stop_token_ids": [2],
    "repetition_penalty": 1, "presence_penalty": 0, "frequency_penalty": 0, "seed": 5, "logprobs": 0,
    "detokenize": False,
}  # fmt: skip


def make(directory: Path) -> None:
    settings, _ = tiny.FAMILIES["idefics3"]
    # vLLM on a processor needs heads of 64.
    settings["text_config"] |= dict(hidden_size=128, num_attention_heads=2, num_key_value_heads=1)
    settings["vision_config"] = {**settings["vision_config"], "hidden_size": 128}
    # vLLM resizes with torchvision, which rounds otherwise.
    whole = Idefics3ImageProcessorPil(do_resize=False, do_image_splitting=False, max_image_size={"longest_edge": 32})
    tiny.FAMILIES["idefics3"] = (settings, whole)
    folder = tiny.build("idefics3", directory)
    processor = {"processor_class": "Idefics3Processor", "image_seq_len": 4}
    (folder / "processor_config.json").write_text(json.dumps(processor))


def record(directory: Path, url: str, server: str) -> None:
    folder = directory / "idefics3"
    model = tiny.reference(folder)
    vision, _ = open_vision(model.model, folder, folder, 1 << 25)
    images = [vision.read(hashlib.sha256(file).hexdigest(), file) for file in FILES]

    def ask(name: str, *parts: int | list[int], stream: bool = False, scored: bool = False) -> dict:
        """An integer is an image."""
        sent = [token for part in parts for token in ([tiny.IMAGE_TOKEN] if isinstance(part, int) else part)]
        whole = tiny.sequence(*(images[part] if isinstance(part, int) else part for part in parts))
        shown = [FILES[part] for part in parts if isinstance(part, int)]
        urls = [f"data:image/{kind(file)};base64,{b64encode(file).decode()}" for file in shown]
        body = {
            "model": "policy",
            "token_ids": sent,
            "content_parts": [{"type": "image_url", "url": each} for each in urls],
            "return_token_ids": True,
            "sampling_params": ASKED | ({"prompt_logprobs": 0} if scored else {}),
        } | ({"stream": True} if stream else {})
        headers = {"content-type": "application/json"}
        with urlopen(Request(url + PATH, json.dumps(body).encode(), headers)) as response:
            answer = response.read().decode()
        lines = [line[6:] for line in answer.split("\n") if line.startswith("data: {")] if stream else [answer]
        choices = [json.loads(line)["choices"][0] for line in lines]
        tokens = [token for choice in choices for token in choice["token_ids"] or []]
        asked = {
            "prompt": whole.ids,
            "media": [
                {"at": picture.at, "length": len(picture.image.tokens), "hash": picture.image.hash}
                for picture in whole.pictures
            ],
            "params": PARAMS,
        } | ({"promptLogprobs": True} if scored else {})
        ids = torch.tensor(whole.ids + tokens)
        logprobs = tiny.plain_logprobs(model, vision, tiny.Sequence_(ids.tolist(), whole.pictures))
        own = [round(value, 5) for value in logprobs[:-1].gather(1, ids[1:, None])[:, 0].tolist()]
        return {
            "name": name, "asked": asked, "stream": stream, "path": PATH, "body": body, "status": 200, "answer": answer,
            "tokens": tokens, "stopReason": choices[-1]["finish_reason"],
            "logprobs": own[len(whole.ids) - 1 :],
        } | ({"promptLogprobs": own[: len(whole.ids) - 1]} if scored else {})  # fmt: skip

    text = tiny.text
    recorded = [
        ask("an image", text(1, 5), 0, text(2, 4)),
        ask("an image, streamed", text(1, 5), 0, text(2, 4), stream=True),
        ask("two images", 0, text(2, 4), 1, text(3, 3)),
        ask("an image twice", text(1, 5), 0, 0, text(3, 3)),
        ask("log-probabilities of a prompt with an image", text(1, 5), 0, text(2, 4), scored=True),
    ]
    FIXTURE.write_text(json.dumps({"server": server, "recorded": recorded}, indent=1) + "\n")


def kind(file: bytes) -> str:
    return "png" if file[0] == 0x89 else "jpeg"


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    if sys.argv[1] == "make":
        make(Path(sys.argv[2]))
    else:
        record(Path(sys.argv[2]), *sys.argv[3:])

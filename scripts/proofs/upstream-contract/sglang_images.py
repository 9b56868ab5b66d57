"""Records how SGLang's own front end reads requests with images, for sampler.test.ts: SGLang itself needs an accelerator.

    pip download --no-deps sglang==0.5.23 && unzip -q sglang-*.whl -d SGLANG
    pip install --no-deps --target SGLANG orjson num2words docopt
    export PYTHONPATH=SGLANG:worker:worker/tests
    PYTHON scripts/proofs/upstream-contract/sglang_images.py DIRECTORY
    npx biome format --write src/backends/servers/fixtures

PYTHON is the one of vLLM's environment, which has transformers 5.19, as SGLang requires. SGLang's tokenizer manager and its image
processors read the request. transformers computes the reply from their tokens, features and positions, and SGLang's message
types write it. Only SGLang's scheduler and kernels are absent. The recorded log-probabilities are those of Hone's image processor.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib.machinery
import json
import sys
from base64 import b64encode
from collections import defaultdict
from pathlib import Path
from types import ModuleType
from unittest.mock import MagicMock

sys.path.pop(0)  # its sglang.py is not the package
for name in ("IPython", "IPython.display", "gguf"):
    absent = sys.modules[name] = ModuleType(name)
    absent.__spec__ = importlib.machinery.ModuleSpec(name, None)
    absent.__getattr__ = lambda _: MagicMock()

import tiny_vision_models as tiny  # noqa: E402
import torch  # noqa: E402
from hone_worker.images.vision import open_vision  # noqa: E402
from sglang.api.v1 import api_types as types  # noqa: E402
from sglang.srt.managers.io_struct import GenerateReqInput  # noqa: E402
from sglang.srt.managers.tokenizer_manager import TokenizerManager  # noqa: E402
from sglang.srt.runtime_context import publish  # noqa: E402
from sglang.srt.sampling.sampling_params import SamplingParams  # noqa: E402
from sglang.srt.server_args import ServerArgs  # noqa: E402
from sglang.version import __version__  # noqa: E402

FIXTURE = Path(__file__).parents[3] / "src/backends/servers/fixtures/sglang-images.json"
FILES = [tiny.picture(1), tiny.picture(2, 40, 24, "JPEG")]
PARAMS = {
    "maxTokens": 6, "temperature": 1, "topP": 1, "topK": -1, "minP": 0, "stopIds": [2], "stopStrings": [], "seed": 5,
}  # fmt: skip
ASKED = {
    "max_new_tokens": 6, "temperature": 1, "top_p": 1, "top_k": -1, "min_p": 0, "stop_token_ids": [2],
    "repetition_penalty": 1, "presence_penalty": 0, "frequency_penalty": 0, "sampling_seed": 5,
}  # fmt: skip
START, END = 5, 6


def open_manager(folder: Path) -> TokenizerManager:
    """SGLang's tokenizer manager without its sockets."""
    arguments = ServerArgs(model_path=str(folder), device="cpu", disable_fast_image_processor=True)
    publish(arguments, role="tokenizer")
    manager = TokenizerManager.__new__(TokenizerManager)
    manager.server_args = arguments
    manager.init_model_config()
    manager.init_tokenizer_and_processor()
    manager.max_req_input_len = manager.context_len
    manager.preferred_sampling_params = None
    manager.sampling_params_class = SamplingParams
    manager.rid_to_state = defaultdict(MagicMock)
    return manager


def read(manager: TokenizerManager, body: dict):
    """What SGLang sends to its scheduler."""
    types.GenerateRequest.from_json_value(body)
    request = GenerateReqInput(**body)
    request.normalize_batch_and_arguments()
    return asyncio.run(manager._tokenize_one_request(request))


def reply(model, tokenized, scored: bool):
    """Yields the answer so far after each token."""
    prompt, seen = list(tokenized.input_ids), tokenized.mm_inputs
    features = torch.cat([item.feature for item in seen.mm_items])
    grids = torch.cat([item.image_grid_thw for item in seen.mm_items])
    generator = torch.Generator().manual_seed(ASKED["sampling_seed"])
    tokens, entries, reason = [], [], None
    while reason is None:
        after = (torch.arange(len(prompt), len(prompt) + len(tokens)) + seen.mrope_position_delta.flatten()).expand(3, -1)
        logits = model(
            input_ids=torch.tensor([prompt + tokens]), pixel_values=features, image_grid_thw=grids,
            position_ids=torch.cat([seen.mrope_positions, after], 1)[:, None], use_cache=False,
        ).logits[0]  # fmt: skip
        logprobs = logits.log_softmax(-1)
        tokens.append(int(torch.multinomial(logprobs[-1].exp(), 1, generator=generator)))
        entries.append(types.LogprobEntry(logprob=logprobs[-1, tokens[-1]].item(), token_id=tokens[-1]))
        if tokens[-1] in ASKED["stop_token_ids"]:
            reason = types.FinishStop(matched=tokens[-1])
        elif len(tokens) == ASKED["max_new_tokens"]:
            reason = types.FinishLength(length=len(tokens))
        info = types.GenerateMetaInfo(
            id="1", prompt_tokens=len(prompt), completion_tokens=len(tokens), finish_reason=reason,
            output_token_logprobs=entries, output_token_logprobs_length=len(entries), output_top_logprobs=[],
            input_token_logprobs=prompt_entries(prompt, seen, logprobs) if scored else None, weight_version="default",
        )  # fmt: skip
        yield types.GenerateResponse(output_ids=tokens, meta_info=info, prompt_token_ids=prompt).to_json_value()


def prompt_entries(prompt: list[int], seen, logprobs) -> list:
    """As SGLang's scheduler: images are hashes, which it limits to the vocabulary (ScheduleBatch) and reports as 0."""
    padded = list(prompt)
    for item in seen.mm_items:
        for start, end in item.offsets:
            padded[start : end + 1] = [1 << 30] * (end - start + 1)
    last = logprobs.shape[1] - 1
    rest = [
        types.LogprobEntry(logprob=logprobs[at, min(token, last)].item(), token_id=token if token < last else 0)
        for at, token in enumerate(padded[1:])
    ]
    return [types.LogprobEntry(logprob=None, token_id=prompt[0]), *rest]


def record(family: str, directory: Path, recorded: list) -> None:
    folder = tiny.build(family, directory, 32)
    (folder / "chat_template.jinja").write_text("")
    manager, model = open_manager(folder), tiny.reference(folder)
    vision, _ = open_vision(model.model, folder, folder, 1 << 25)
    images = [vision.read(hashlib.sha256(file).hexdigest(), file) for file in FILES]

    def ask(name: str, *parts: int | list[int], stream: bool = False, scored: bool = False) -> None:
        """An integer is an image."""
        sent = [token for part in parts for token in ([START, tiny.IMAGE_TOKEN, END] if isinstance(part, int) else part)]
        own = [
            piece for part in parts for piece in ([[START], images[part], [END]] if isinstance(part, int) else [part])
        ]
        whole = tiny.sequence(*own)
        urls = [f"data:image/{kind(FILES[part])};base64,{b64encode(FILES[part]).decode()}" for part in parts if isinstance(part, int)]
        body = {
            "input_ids": sent, "image_data": urls, "return_prompt_token_ids": True, "sampling_params": ASKED,
            "return_logprob": True,
        } | ({"logprob_start_len": 0} if scored else {}) | ({"stream": True} if stream else {})  # fmt: skip
        tokenized = read(manager, body)
        places = [(picture.at, picture.at + len(picture.image.tokens) - 1) for picture in whole.pictures]
        assert [place for item in tokenized.mm_inputs.mm_items for place in item.offsets] == places, name
        events = list(reply(model, tokenized, scored))
        tokens = events[-1]["output_ids"]
        lines = [f"data: {json.dumps(event)}\n\n" for event in events]
        ids = torch.tensor(whole.ids + tokens)
        logprobs = tiny.plain_logprobs(model, vision, tiny.Sequence_(ids.tolist(), whole.pictures))
        logprobs = [round(value, 5) for value in logprobs[:-1].gather(1, ids[1:, None])[:, 0].tolist()]
        split = len(whole.ids) - 1
        recorded.append({
            "name": f"{family}: {name}",
            "asked": {
                "prompt": whole.ids,
                "media": [
                    {"at": picture.at, "length": len(picture.image.tokens), "hash": picture.image.hash}
                    for picture in whole.pictures
                ],
                "params": PARAMS,
            } | ({"promptLogprobs": True} if scored else {}),
            "stream": stream, "path": "/generate", "body": body, "status": 200,
            "answer": "".join([*lines, "data: [DONE]\n\n"]) if stream else json.dumps(events[-1]),
            "tokens": tokens, "stopReason": events[-1]["meta_info"]["finish_reason"]["type"], "logprobs": logprobs[split:],
        } | ({"promptLogprobs": logprobs[:split]} if scored else {}))  # fmt: skip

    # Random bytes, whose text has other tokens.
    text = tiny.text
    ask("an image", text(1, 5), 0, text(2, 4))
    ask("two images", 0, text(2, 4), 1, text(3, 3))
    if family == "qwen2_5_vl":
        ask("an image, streamed", text(1, 5), 0, text(2, 4), stream=True)
        ask("an image twice", text(1, 5), 0, 0, text(3, 3))
        ask("log-probabilities of a prompt with an image", text(1, 5), 0, text(2, 4), scored=True)


def refuse(family: str, directory: Path) -> None:
    manager = open_manager(tiny.build(family, directory, 32))
    url = f"data:image/png;base64,{b64encode(FILES[0]).decode()}"
    try:
        read(manager, {"input_ids": [9, tiny.IMAGE_TOKEN, 9], "image_data": [url], "sampling_params": ASKED})
    except AttributeError as error:
        print(f"{family}: {error}")
    else:
        raise AssertionError(f"SGLang now accepts token ids with images for {family}")


def kind(file: bytes) -> str:
    return "png" if file[0] == 0x89 else "jpeg"


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    # SGLang uses these limits for Qwen2-VL, regardless of the model's folder.
    tiny.FAMILIES["qwen2_vl"][1].size = {"shortest_edge": 3136, "longest_edge": 1003520}
    every: list = []
    record("qwen2_vl", Path(sys.argv[1]), every)
    record("qwen2_5_vl", Path(sys.argv[1]), every)
    server = f"SGLang {__version__} (tokenizer manager, image processors and message types)"
    FIXTURE.write_text(json.dumps({"server": server, "recorded": every}, indent=1) + "\n")
    refuse("smolvlm", Path(sys.argv[1]))
    refuse("idefics3", Path(sys.argv[1]))

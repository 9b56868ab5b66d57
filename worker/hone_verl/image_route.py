"""vLLM's `/inference/v1/generate` with images, for verl's servers: their vLLM (0.24) ignores images on this route.

    actor_rollout_ref.rollout.engine_kwargs.vllm.middleware=hone_verl.image_route.ImageRoute

Requests and answers have the form of vLLM 0.32. All other requests go to vLLM. verl's own `generate` accepts images, but returns neither the
expanded prompt nor single tokens, and is called through Ray.

The route asks vLLM to resize with Pillow in each request, because vLLM 0.24 ignores `use_fast: false` of its configuration for Qwen-VL:
log-probabilities of a tiny Qwen2-VL then differ from the workers' by 1e-5 instead of 0.03. verl forbids its servers to sample the
placeholders of images, so the log-probability of each token is higher by -log(1 - p), p being the probability of these placeholders."""

import asyncio
import json
import math
from base64 import b64decode
from collections.abc import AsyncIterator
from typing import Any

from hone_worker.errors import UnusableImage, first_line
from hone_worker.images.decoder import decode
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from vllm import RequestOutput, SamplingParams, TokensPrompt
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.async_llm import AsyncLLM

_PATH = "/inference/v1/generate"
# vLLM's value for a probability of 0; JSON has no infinity.
_LOWEST = -9999.0


class ImageRoute:
    def __init__(self, app: ASGIApp):
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or (scope["method"], scope["path"]) != ("POST", _PATH):
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        try:
            response = await _answer(request.app.state.engine_client, await request.json())
        except (ValueError, UnusableImage) as error:  # vLLM raises ValueError for requests that it refuses
            response = JSONResponse({"error": {"message": first_line(error), "code": 400}}, 400)
        await response(scope, receive, send)


async def _answer(engine: AsyncLLM, body: dict[str, Any]) -> Response:
    params = SamplingParams(**body["sampling_params"], output_kind=RequestOutputKind.DELTA)
    prompt = TokensPrompt(prompt_token_ids=body["token_ids"])
    if parts := body.get("content_parts"):
        prompt["multi_modal_data"] = {"image": [await asyncio.to_thread(_read, part["url"]) for part in parts]}
        # The workers also resize with Pillow. vLLM 0.24 ignores this value of its configuration for Qwen-VL.
        prompt["mm_processor_kwargs"] = {"use_fast": False}
    outputs = engine.generate(prompt, params, body["request_id"])
    # With its first output, vLLM has accepted the request. From then on, a client that leaves ends it.
    events = _events(await anext(outputs), outputs)
    if body.get("stream"):
        return StreamingResponse(_stream(events), media_type="text/event-stream")
    return StreamingResponse(_whole(events), media_type="application/json")


def _read(url: str) -> Any:
    """The image in a data URL, as the trainer reads it."""
    return decode(b64decode(url.partition(",")[2], validate=True))


async def _events(first: RequestOutput, others: AsyncIterator[RequestOutput]) -> AsyncIterator[dict[str, Any]]:
    prompt = {"prompt_token_ids": first.prompt_token_ids}
    if first.prompt_logprobs is not None:
        prompt["prompt_logprobs"] = [
            row and {token: {"logprob": _finite(known.logprob)} for token, known in row.items()}
            for row in first.prompt_logprobs
        ]
    yield {**prompt, "choices": [_choice(first)]}
    async for output in others:
        yield {"choices": [_choice(output)]}


def _choice(output: RequestOutput) -> dict[str, Any]:
    [new] = output.outputs
    content = []
    for token, row in zip(new.token_ids, new.logprobs or [], strict=True):
        top = [{"token_id": other, "logprob": _finite(known.logprob)} for other, known in row.items()]
        content.append({"token_id": token, "logprob": _finite(row[token].logprob), "top_logprobs": top})
    return {"token_ids": list(new.token_ids), "logprobs": {"content": content}, "finish_reason": new.finish_reason}


def _finite(logprob: float) -> float | None:
    return None if math.isnan(logprob) else max(logprob, _LOWEST)


async def _stream(events: AsyncIterator[dict[str, Any]]) -> AsyncIterator[str]:
    async for event in events:
        yield f"data: {json.dumps(event)}\n\n"
    yield "data: [DONE]\n\n"


async def _whole(events: AsyncIterator[dict[str, Any]]) -> AsyncIterator[str]:
    answer = await anext(events)
    [whole] = answer["choices"]
    async for event in events:
        [new] = event["choices"]
        whole["token_ids"] += new["token_ids"]
        whole["logprobs"]["content"] += new["logprobs"]["content"]
        whole["finish_reason"] = new["finish_reason"]
    yield json.dumps(answer)

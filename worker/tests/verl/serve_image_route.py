"""Serves ImageRoute with vLLM's own classes before a double of its engine, in the environment of vLLM. Prints the port.

The double reads the placeholder 9 as the tokens 9 8 9, and refuses the token 7. It samples 4 and 5; with `max_tokens` 1 it
is aborted after 4. `GET /seen` returns what it was asked."""

import asyncio
import inspect
import math
import socket
from collections.abc import AsyncIterator
from typing import Any

import uvicorn
from hone_verl.image_route import ImageRoute
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from vllm import CompletionOutput, RequestOutput
from vllm.logprobs import Logprob
from vllm.v1.engine.async_llm import AsyncLLM

_SIGNATURE = inspect.signature(AsyncLLM.generate)
_REPORTED = ("max_tokens", "temperature", "top_k", "min_p", "seed", "stop", "repetition_penalty")
_seen: list[dict[str, Any]] = []


class Engine:
    def generate(self, *arguments: Any) -> AsyncIterator[RequestOutput]:
        asked = _SIGNATURE.bind(self, *arguments).arguments
        return self._sample(**{name: asked[name] for name in ("prompt", "sampling_params", "request_id")})

    async def _sample(self, prompt: Any, sampling_params: Any, request_id: str) -> AsyncIterator[RequestOutput]:
        ids, images = prompt["prompt_token_ids"], prompt.get("multi_modal_data", {}).get("image", [])
        shown = [[*image.size, image.mode, image.getpixel((0, 0))] for image in images]
        params = {name: getattr(sampling_params, name) for name in _REPORTED}
        _seen.append({"ids": ids, "images": shown, "options": prompt.get("mm_processor_kwargs"), **params})
        if 7 in ids:
            raise ValueError("a token is refused")
        left = len(images)
        read = []
        for token in ids:
            read += [9, 8, 9] if token == 9 and left > 0 else [token]
            left -= token == 9
        known = [None, *({token: Logprob(-token / 8)} for token in read[1:])]
        given = None if sampling_params.prompt_logprobs is None else known

        def output(tokens: list[int], reason: str | None) -> RequestOutput:
            rows = [{token: Logprob(-token / 8), 6: Logprob(-math.inf)} for token in tokens]
            new = CompletionOutput(0, "", tokens, None, rows, finish_reason=reason)
            return RequestOutput(request_id, None, read, given, [new], reason is not None)

        yield output([4], None)
        await asyncio.sleep(0)
        yield output([], "abort") if sampling_params.max_tokens == 1 else output([5], "stop")


async def seen(_: Request) -> JSONResponse:
    return JSONResponse(_seen)


if __name__ == "__main__":
    app = Starlette(routes=[Route("/inference/v1/generate", seen, methods=["POST"]), Route("/seen", seen)])
    app.state.engine_client = Engine()
    app.add_middleware(ImageRoute)
    listening = socket.create_server(("127.0.0.1", 0))
    print(listening.getsockname()[1], flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="warning")).run([listening])

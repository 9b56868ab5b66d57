"""The lightest rollout of verl's interface: transformers in a Ray actor, behind the routes of vLLM that Hone uses.

    actor_rollout_ref.model.external_lib=hone_on_cpu.small_rollout actor_rollout_ref.rollout.name=small

Tests run the driver's path to rollout servers with it where there is no GPU. It samples at a temperature and greedily;
filters and stop strings are refused."""

import asyncio
import json
import os
import threading
from collections.abc import AsyncIterator, Generator
from pathlib import Path
from typing import Any

import ray
import torch
import uvicorn
from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.responses import StreamingResponse
from ray.actor import ActorHandle
from ray.exceptions import ActorDiedError
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from verl.workers.rollout.base import _ROLLOUT_REGISTRY, BaseRollout
from verl.workers.rollout.replica import RolloutReplica, RolloutReplicaRegistry

NAME = "small"
# With a file of this name in the model's folder, the servers die when weights arrive.
DIES = "dies-while-loading"
# With a file of this name, they acknowledge the weights that arrive next without loading them.
MISSES = "misses-an-update"
_NEUTRAL = {"top_p": (1,), "top_k": (-1, 0), "min_p": (0,), "stop": (None,), "repetition_penalty": (1,)}


class Server:
    """One replica. Its weights are random until the first update, as with verl's `load_format=dummy`."""

    def __init__(self, folder: str, sleeps: bool):
        torch.manual_seed(0)
        self._name = folder
        self._model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder)).eval().float()
        self._tokenizer = AutoTokenizer.from_pretrained(folder)
        self._sleeps, self._asleep = sleeps, False
        self._paused = False
        self._aborts = 0

    async def launch(self) -> str:
        app = FastAPI()
        app.get("/health")(lambda: {})
        app.get("/v1/models")(self._models)
        app.post("/tokenize")(self._tokenize)
        app.post("/v1/completions", response_model=None)(self._complete)
        server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning"))
        threading.Thread(target=server.run, daemon=True).start()
        while not server.started:
            await asyncio.sleep(0.05)
        return f"127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"

    async def load(self, weights: dict[str, Any]) -> None:
        assert not self._asleep, "weights arrive at a server that sleeps"
        if (Path(self._name) / DIES).exists():
            os._exit(1)
        if (Path(self._name) / MISSES).exists():
            (Path(self._name) / MISSES).unlink(missing_ok=True)
            return
        tensors = {name: torch.tensor(value) for name, value in weights.items()}
        missing = self._model.load_state_dict(tensors, strict=False).missing_keys
        assert not set(missing) - {"lm_head.weight"}, missing
        self._model.tie_weights()

    async def wake_up(self, tags: list[str] | None = None) -> None:
        self._asleep = False

    async def sleep(self) -> None:
        self._asleep = self._sleeps

    async def abort_all_requests(self, reject_request: bool = False) -> None:
        self._aborts += 1
        self._paused = True

    async def resume_generation(self) -> None:
        self._paused = False

    def _models(self) -> dict[str, Any]:
        return {"data": [{"id": self._name, "max_model_len": self._model.config.max_position_embeddings}]}

    async def _tokenize(self, request: Request) -> dict[str, Any]:
        text = (await request.json())["prompt"]
        return {"tokens": self._tokenizer(text, add_special_tokens=False)["input_ids"]}

    async def _complete(self, request: Request) -> Response | dict[str, Any]:
        body = await request.json()
        for field, neutral in _NEUTRAL.items():
            if body.get(field, neutral[0]) not in neutral:
                raise HTTPException(400, f"{field} is not supported")
        tokens = self._sample(body)
        if body.get("stream"):
            return StreamingResponse(
                f"data: {json.dumps(_answer([one], reason))}\n\n" async for one, reason in tokens
            )
        sampled = [each async for each in tokens]
        answer = _answer([one for one, _ in sampled], sampled[-1][1])
        if body.get("prompt_logprobs") is not None:
            every, prompt = self._logits(body["prompt"])[:-1].log_softmax(-1), body["prompt"]
            known = [{str(token): {"logprob": row[token].item()}} for row, token in zip(every, prompt[1:], strict=True)]
            answer["choices"][0]["prompt_logprobs"] = [None, *known]
        return answer

    async def _sample(self, body: dict[str, Any]) -> AsyncIterator[tuple[tuple[int, float] | None, str | None]]:
        """Each token with its log-probability, and why it is the last one. None: aborted before the next token."""
        prompt, aborts = body["prompt"], self._aborts
        ends = {*(body.get("stop_token_ids") or []), None if body.get("ignore_eos") else self._model.config.eos_token_id}
        draw = torch.Generator().manual_seed(body["seed"] % 2**63)
        tokens = []
        while self._paused and aborts == self._aborts:
            await asyncio.sleep(0.01)
        while True:
            await asyncio.sleep(0)
            if aborts != self._aborts:
                yield None, "abort"
                return
            logits = self._logits(prompt + tokens)[-1]
            greedy = body["temperature"] == 0
            odds = logits if greedy else (logits / body["temperature"]).softmax(-1)
            token = int(odds.argmax() if greedy else torch.multinomial(odds, 1, generator=draw))
            tokens.append(token)
            reason = "stop" if token in ends else "length" if len(tokens) == body["max_tokens"] else None
            yield (token, logits.log_softmax(-1)[token].item()), reason
            if reason is not None:
                return

    @torch.no_grad()
    def _logits(self, tokens: list[int]) -> torch.Tensor:
        return self._model(torch.tensor([tokens])).logits[0].float()


def _answer(sampled: list[tuple[int, float] | None], reason: str | None) -> dict[str, Any]:
    known = [each for each in sampled if each is not None]
    logprobs = {"token_logprobs": [logprob for _, logprob in known]}
    choice = {"token_ids": [token for token, _ in known], "logprobs": logprobs, "finish_reason": reason}
    return {"choices": [choice]}


def _name(replica: int) -> str:
    return f"small_server_{replica}"


class Replica(RolloutReplica):
    async def launch_servers(self) -> None:
        server = ray.remote(Server).options(name=_name(self.replica_rank))
        server = server.remote(self.model_config.path, self.config.free_cache_engine)
        self.servers, self._server_handle = [server], server
        self._server_address = await server.launch.remote()


class Adapter(BaseRollout):
    """In each of the actor's workers; those of one replica take part, and the first of them sends."""

    def __init__(self, **arguments: Any):
        super().__init__(**arguments)
        rank, size = torch.distributed.get_rank(), self.config.tensor_model_parallel_size
        self._replica, self._sends = rank // size, rank % size == 0

    def _server(self) -> ActorHandle:
        return ray.get_actor(_name(self._replica))

    async def resume(self, tags: list[str]) -> None:
        if self._sends:
            await self._server().wake_up.remote(tags)

    async def release(self) -> None:
        if self._sends:
            await self._server().sleep.remote()

    async def update_weights(self, weights: Generator, **_: Any) -> None:
        whole = {name: value.float().cpu().numpy() for name, value in weights}
        if not self._sends:
            return
        try:
            await self._server().load.remote(whole)
        except ActorDiedError:  # verl's sender does not notice it
            await asyncio.Event().wait()


RolloutReplicaRegistry.register(NAME, lambda: Replica)
_ROLLOUT_REGISTRY[NAME, "async"] = f"{__name__}.Adapter"

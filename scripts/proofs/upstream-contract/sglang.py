"""Answers POST /generate with SGLang's own message types, in front of the tiny model: SGLang itself needs an accelerator.

    pip download --no-deps sglang==0.5.23 && unzip sglang-*.whl sglang/api/v1/api_types.py
    python sglang.py sglang/api/v1/api_types.py MODEL PORT

Requests are read, and answers written, by the classes that SGLang's HTTP contract is generated into; a request with a key that
they do not know is refused here, although SGLang would ignore it. Log-probabilities are the model's own, as SGLang tells them
under SGLANG_RETURN_ORIGINAL_LOGPROB=1. Streams repeat all of the reply with each event, as SGLang's do by default.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

spec = importlib.util.spec_from_file_location("api_types", sys.argv[1])
types = importlib.util.module_from_spec(spec)
sys.modules["api_types"] = types
spec.loader.exec_module(types)
model = AutoModelForCausalLM.from_pretrained(sys.argv[2], dtype=torch.float32)
tokenizer = AutoTokenizer.from_pretrained(sys.argv[2])
LONGEST = 1024


def draw(logits: torch.Tensor, params, generator: torch.Generator) -> int:
    if params.temperature == 0:
        return int(logits.argmax())
    probabilities = torch.softmax(logits / params.temperature, -1)
    ranked, order = probabilities.sort(descending=True)
    kept = ranked.cumsum(-1) - ranked < params.top_p
    kept &= ranked >= ranked[0] * params.min_p
    if params.top_k > 0:
        kept[params.top_k :] = False
    return int(order[torch.multinomial(ranked * kept, 1, generator=generator)])


def finish(tokens: list[int], params):
    if tokens[-1] in (params.stop_token_ids or []) or (tokens[-1] == tokenizer.eos_token_id and not params.ignore_eos):
        return types.FinishStop(matched=tokens[-1])
    for stop in params.stop or []:
        if stop in tokenizer.decode(tokens):
            return types.FinishStop(matched=stop)
    return types.FinishLength(length=len(tokens)) if len(tokens) == params.max_new_tokens else None


def generate(request):
    """Yields the reply so far after each token."""
    params = request.sampling_params
    generator = torch.Generator().manual_seed(params.sampling_seed)
    tokens: list[int] = []
    entries, tops = [], []
    reason = None
    while reason is None:
        with torch.no_grad():
            logits = model(torch.tensor([request.input_ids + tokens])).logits[0, -1]
        logprobs = torch.log_softmax(logits, -1)
        tokens.append(draw(logits, params, generator))
        entries.append(types.LogprobEntry(logprob=logprobs[tokens[-1]].item(), token_id=tokens[-1]))
        top = logprobs.topk(request.top_logprobs_num) if request.top_logprobs_num else ([], [])
        tops.append([types.LogprobEntry(logprob=float(value), token_id=int(token)) for value, token in zip(*top)])
        reason = finish(tokens, params)
        info = types.GenerateMetaInfo(
            id="1", prompt_tokens=len(request.input_ids), completion_tokens=len(tokens), finish_reason=reason,
            output_token_logprobs=entries, output_token_logprobs_length=len(entries),
            output_top_logprobs=tops if request.top_logprobs_num else [], weight_version="default",
        )
        text = tokenizer.decode(tokens, skip_special_tokens=True)
        yield types.GenerateResponse(text=text, output_ids=tokens, meta_info=info).to_json_value()


def check(value) -> object:
    request = types.GenerateRequest.from_json_value(value)
    known = request.to_json_value()
    unknown = [key for key in value if key not in known]
    unknown += [key for key in value["sampling_params"] if key not in known["sampling_params"]]
    if unknown:
        raise ValueError(f"unknown: {unknown}")
    if len(request.input_ids) + request.sampling_params.max_new_tokens > LONGEST:
        raise ValueError(
            f"Requested token count exceeds the model's maximum context length of {LONGEST} tokens. You requested "
            f"{request.sampling_params.max_new_tokens} tokens for the completion."
        )
    return request


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        value = json.loads(self.rfile.read(int(self.headers["content-length"])))
        try:
            request = check(value)
        except (ValueError, types.JsonContractError) as error:
            return self.answer(400, "application/json", json.dumps({"error": {"message": str(error)}}))
        events = list(generate(request))
        if not request.stream:
            return self.answer(200, "application/json", json.dumps(events[-1]))
        lines = [f"data: {json.dumps(event)}\n\n" for event in events]
        self.answer(200, "text/event-stream", "".join([*lines, "data: [DONE]\n\n"]))

    def answer(self, status: int, kind: str, text: str) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.end_headers()
        self.wfile.write(text.encode())


print("ready", flush=True)
ThreadingHTTPServer(("127.0.0.1", int(sys.argv[3])), Handler).serve_forever()

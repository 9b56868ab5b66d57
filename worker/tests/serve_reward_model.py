"""A reward server over transformers alone. In LightRFT's format each query is a conversation, as JSON or as the tiny
language model's text, rendered by the reward model's own chat template; in vLLM's (`/classify`) each input is token
ids. Prints its port. Ends with its standard input.

    python serve_reward_model.py DIRECTORY"""

import json
import re
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer


def messages_of(query: str) -> list[dict]:
    if query.startswith("["):
        return json.loads(query)
    prompt, _, reply = query.partition("<|im_start|>assistant\n")
    (asked,) = re.findall(r"<\|im_start\|>user\n(.*?)<\|im_end\|>", prompt, re.DOTALL)
    return [{"role": "user", "content": asked}, {"role": "assistant", "content": re.sub(r"<\|\w+\|>", "", reply)}]


def main() -> None:
    tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
    model = AutoModelForSequenceClassification.from_pretrained(sys.argv[1], dtype=torch.float32).eval()

    @torch.no_grad()
    def score(ids: list[int]) -> float:
        return float(model.score(model.model(input_ids=torch.tensor([ids])).last_hidden_state[0, -1]))

    def encode(text: str) -> list[int]:
        return tokenizer(text, add_special_tokens=False).input_ids

    def answer(path: str, body: dict) -> dict:
        if path == "/v1/models":
            return {"data": [{"id": "judge", "root": sys.argv[1], "max_model_len": 512, "owned_by": "vllm"}]}
        if path == "/tokenize":
            return {"tokens": encode(body["prompt"])}
        if path == "/classify":
            assert body["use_activation"] is False
            return {"data": [{"index": i, "probs": [score(ids)]} for i, ids in enumerate(body["input"])]}
        texts = [tokenizer.apply_chat_template(messages_of(query), tokenize=False) for query in body["queries"]]
        return {"rewards": [score(encode(text)) for text in texts]}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.reply({})

        def do_POST(self) -> None:
            self.reply(json.loads(self.rfile.read(int(self.headers["content-length"]))))

        def reply(self, body: dict) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(answer(self.path, body)).encode())

        def log_message(self, *_) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_port, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()

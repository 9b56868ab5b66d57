"""A reward server over transformers alone: each query is a conversation as JSON, rendered by the model's own chat
template. Prints its port. Ends with its standard input.

    python serve_reward_model.py DIRECTORY"""

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer


def main() -> None:
    tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
    model = AutoModelForSequenceClassification.from_pretrained(sys.argv[1], dtype=torch.float32).eval()

    @torch.no_grad()
    def score(query: str) -> float:
        text = tokenizer.apply_chat_template(json.loads(query), tokenize=False)
        ids = tokenizer(text, add_special_tokens=False, return_tensors="pt").input_ids
        return float(model.score(model.model(input_ids=ids).last_hidden_state[0, -1]))

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            answer = json.dumps({"rewards": [score(query) for query in body["queries"]]}).encode()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_port, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()

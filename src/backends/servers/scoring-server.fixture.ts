/** A server that answers like vLLM or SGLang with a reward model: a sequence's score is the sum of its tokens. */
import { createServer, type IncomingMessage } from "node:http";
import { listen } from "../../base/http.ts";

export interface ScoringServer {
  url: string;
  /** Sizes of the batches that it scored. */
  batches: number[];
  close(): void;
}

export interface ScoringServerOptions {
  kind?: "vllm" | "vllm-per-token" | "sglang";
  model?: string;
  maxLength?: number;
  tokens?: readonly number[];
  /** Numbers that a sequence gets. */
  labels?: number;
  apiKey?: string;
  /** The status of the n-th request for scores, counted from 0 with the probe; 200 answers. */
  status?: (request: number) => number;
}

type Body = { input?: number[][]; input_ids?: number[][]; use_activation?: boolean };

export async function scoringServer(options: ScoringServerOptions = {}): Promise<ScoringServer> {
  const { kind = "vllm", model = "judge", maxLength = 100, tokens = [1, 2], labels = 1, status = () => 200 } = options;
  const batches: number[] = [];
  let requests = 0;

  function answer(path: string, body: Body): unknown {
    if (path === "/v1/models") {
      return { data: [{ id: model, root: model, max_model_len: maxLength, owned_by: kind.split("-")[0] }] };
    }
    if (path === "/tokenize") return { tokens };
    const asked = kind === "sglang" ? body.input_ids : body.input;
    const isScored = path === (kind === "vllm-per-token" ? "/pooling" : "/classify");
    if (!isScored || asked === undefined || (kind !== "sglang" && body.use_activation !== false)) return 404;
    const code = status(requests++);
    if (code !== 200) return code;
    batches.push(asked.length);
    const scores = asked.map((sequence) => Array<number>(labels).fill(sequence.reduce((sum, id) => sum + id, 0)));
    if (kind === "sglang") return scores.map((embedding) => ({ embedding, meta_info: {} }));
    if (kind === "vllm") return { data: scores.map((probs, index) => ({ index, probs })).reverse() };
    return { data: scores.map((score, index) => ({ index, data: [[99], score] })) };
  }

  const server = createServer(async (incoming: IncomingMessage, response) => {
    let text = "";
    for await (const chunk of incoming) text += chunk;
    const refused = options.apiKey !== undefined && incoming.headers.authorization !== `Bearer ${options.apiKey}`;
    const given = refused ? 401 : answer(incoming.url ?? "", text === "" ? {} : (JSON.parse(text) as Body));
    response.writeHead(typeof given === "number" ? given : 200, { "content-type": "application/json" });
    response.end(JSON.stringify(given));
  });
  const url = await listen(server);
  return {
    url,
    batches,
    close() {
      server.closeAllConnections();
      server.close();
    },
  };
}

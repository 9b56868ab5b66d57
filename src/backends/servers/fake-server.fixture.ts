/** An inference server that speaks vLLM's or SGLang's HTTP in front of a sampler, so that its replies come from a real model. */
import { createServer, type ServerResponse } from "node:http";
import { toReply } from "../../apps/server/vllm-messages.ts";
import { listen } from "../../base/http.ts";
import type { Sample, SampleRequest, Sampler } from "../engine.ts";

export type ServerKind = "vllm" | "sglang";

interface Asked {
  request: SampleRequest;
  stream: boolean;
}

/**
 * @param sampler returns the sampler for the name of a model, called for each request
 * @param control answers other requests than for samples
 */
export async function fakeServer(
  kind: ServerKind,
  sampler: (model: string) => Sampler | undefined,
  control?: (path: string, body: Record<string, unknown>) => Promise<{ status?: number; text: string } | undefined>,
  /** `label` of the weights in replies; default: the sampler's version. */
  options: { apiKey?: string; port?: number; label?: () => string; generates?: boolean } = {},
): Promise<{ url: string; close(): void }> {
  const { read, write: writeReply } = options.generates ? generate : dialects[kind];
  const running = new Map<string, AbortController>();
  const server = createServer(async (incoming, response) => {
    let text = "";
    for await (const chunk of incoming) text += chunk;
    if (options.apiKey !== undefined && incoming.headers.authorization !== `Bearer ${options.apiKey}`) {
      response.writeHead(401).end("the key is wrong");
      return;
    }
    const body = text === "" ? {} : JSON.parse(text);
    const answer = await control?.(incoming.url ?? "", body);
    if (answer) {
      response.writeHead(answer.status ?? 200).end(answer.text);
      return;
    }
    if (incoming.method === "GET") {
      const hasIt = options.generates && incoming.url === "/inference/v1/generate";
      response.writeHead(incoming.url === "/health" ? 200 : hasIt ? 405 : 404).end();
      return;
    }
    if (incoming.url === "/inference/v1/abort_requests") {
      for (const id of body.request_ids) running.get(id.replace("generate-tokens-", ""))?.abort();
      response.end();
      return;
    }
    const { request, stream } = read(body);
    const model = sampler(String(body.model ?? body.lora_path ?? "base"));
    if (model === undefined) {
      response.writeHead(404).end('{"error":{"message":"The model does not exist."}}');
      return;
    }
    const write = (piece: Piece, end: number) =>
      writeReply(piece, end, request, options.label?.() ?? `${piece.policyVersion}`);
    const gone = new AbortController();
    response.on("close", () => gone.abort());
    running.set(String(body.request_id), gone);
    const tokens: [number, number][] = [];
    const onToken = (_: number, token: number, logprob: number) => {
      tokens.push([token, logprob]);
      event(
        response,
        write({ ...empty, tokens: Int32Array.of(token), logprobs: Float32Array.of(logprob) }, tokens.length),
      );
    };
    const how = stream ? { signal: gone.signal, onToken } : { signal: gone.signal };
    for await (const sample of model.sample([request], how)) {
      if (!stream) response.end(JSON.stringify(write(sample, sample.tokens.length)));
      else {
        event(response, write({ ...sample, tokens: new Int32Array(), logprobs: new Float32Array() }, tokens.length));
        response.end("data: [DONE]\n\n");
      }
    }
  });
  const url = await listen(server, { port: options.port ?? 0 });
  return {
    url,
    close() {
      server.closeAllConnections();
      server.close();
    },
  };
}

const empty = { request: 0, policyVersion: 0, stopReason: undefined };
type Piece = Omit<Sample, "stopReason"> & { stopReason: Sample["stopReason"] | undefined };

const event = (response: ServerResponse, body: object) => response.write(`data: ${JSON.stringify(body)}\n\n`);

/** Fields with the same name in both kinds. */
const common = (asked: Record<string, unknown>) => ({
  temperature: asked.temperature as number,
  topP: asked.top_p as number,
  topK: asked.top_k as number,
  minP: asked.min_p as number,
  stopStrings: (asked.stop ?? []) as string[],
  stopIds: (asked.stop_token_ids ?? []) as number[],
  ignoreEos: asked.ignore_eos === true,
});

/** vLLM's `/inference/v1/generate`. */
const generate = {
  read(body: Record<string, unknown>): Asked {
    const asked = body.sampling_params as Record<string, unknown>;
    const params = { ...common(asked), maxTokens: asked.max_tokens as number, seed: asked.seed as number };
    params.topK ||= -1;
    const prompt = Int32Array.from(body.token_ids as number[]);
    const promptLogprobs = asked.prompt_logprobs === 0;
    const request = { prompt, params, topLogprobs: asked.logprobs as number, promptLogprobs };
    return { request, stream: body.stream === true };
  },
  write: (piece: Piece, _end: number, { prompt }: SampleRequest, label: string): object =>
    toReply({ request_id: "1", created: 1, model: label }, prompt, piece as Sample, true),
};

const dialects = {
  vllm: {
    read(body: Record<string, unknown>): Asked {
      const params = { ...common(body), maxTokens: body.max_tokens as number, seed: body.seed as number };
      const prompt = Int32Array.from(body.prompt as number[]);
      const topLogprobs = body.logprobs as number;
      const promptLogprobs = body.prompt_logprobs === 0;
      return { request: { prompt, params, topLogprobs, promptLogprobs }, stream: body.stream === true };
    },
    write(piece: Piece, _end: number, { prompt }: SampleRequest, label: string): object {
      const { tokens, logprobs, promptLogprobs, topLogprobs, stopReason } = piece;
      const prompt_logprobs =
        promptLogprobs &&
        Array.from(promptLogprobs, (logprob, index) =>
          index === 0 ? null : { [prompt[index]!]: { logprob, rank: 1 } },
        );
      const top_logprobs = topLogprobs?.map((row) =>
        Object.fromEntries(Array.from(row.tokens, (token, index) => [`token_id:${token}`, row.logprobs[index]])),
      );
      const choice = { token_ids: [...tokens], logprobs: { token_logprobs: [...logprobs], top_logprobs } };
      const finish_reason = stopReason ?? null;
      return { choices: [{ ...choice, prompt_logprobs, finish_reason }], weight_version: label };
    },
  },
  sglang: {
    read(body: Record<string, unknown>): Asked {
      const asked = body.sampling_params as Record<string, unknown>;
      const params = {
        ...common(asked),
        maxTokens: asked.max_new_tokens as number,
        seed: asked.sampling_seed as number,
      };
      const prompt = Int32Array.from(body.input_ids as number[]);
      const topLogprobs = (body.top_logprobs_num ?? 0) as number;
      const promptLogprobs = body.logprob_start_len === 0;
      const request = { prompt, params, topLogprobs, promptLogprobs, temperedLogprobs: true };
      return { request, stream: body.stream === true };
    },
    write(piece: Piece, end: number, { prompt }: SampleRequest, label: string): object {
      const { tokens, logprobs, promptLogprobs, topLogprobs, stopReason } = piece;
      const input_token_logprobs =
        promptLogprobs &&
        Array.from(promptLogprobs, (logprob, index) => [index === 0 ? null : logprob, prompt[index], null]);
      const entries = Array.from(tokens, (token, index) => [logprobs[index], token, null]);
      const top = topLogprobs?.map((row) =>
        Array.from(row.tokens, (token, index) => [row.logprobs[index], token, null]),
      );
      const own = { output_token_logprobs: entries, output_token_logprobs_length: end, output_top_logprobs: top };
      const finish_reason = stopReason === undefined ? null : { type: stopReason };
      return { meta_info: { ...own, input_token_logprobs, finish_reason, weight_version: label } };
    },
  },
};

/** A server without a port over the tabular engine, and the few calls that tests make. */
import { mkdtempSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import {
  decodeForwardBackwardOutput,
  decodeSampleResponse,
  encodeForwardBackwardRequest,
  type ForwardBackwardRequest,
} from "../../backends/tinker/messages.ts";
import { deriveSeed, uniforms } from "../../base/values.ts";
import { removeFolder } from "../../temporary-folder.fixture.ts";
import { tabularEngine } from "../../testing/tabular-engine.ts";
import { features } from "./features.ts";
import { openService, type RunningService, type ServerOptions } from "./server.ts";

export const tinyEngine = () =>
  tabularEngine({ alphabet: "abcdefgh", logit: (next, previous) => uniforms(deriveSeed(next, previous))() * 2 - 1 });

type Json = Record<string, unknown>;

export interface TestClient extends RunningService {
  request(method: string, path: string, body?: unknown, headers?: Record<string, string>): Promise<Response>;
  /** Posts JSON and gives the JSON of a successful answer. */
  post(path: string, body: Json): Promise<Json>;
  /** Posts JSON or bytes, then polls the future until it has ended. */
  result(path: string, body: Json | Uint8Array): Promise<Response>;
  /** The same, for a JSON result. */
  finish(path: string, body: Json | Uint8Array): Promise<Json>;
  collect(id: unknown): Promise<Response>;
  /** A session with a model that has not been trained. */
  model(options?: { seed?: number; number?: number; session?: string }): Promise<{ session: string; id: string }>;
  /** forward or forward_backward of cross entropy. */
  cross(
    id: string,
    seq: number,
    forwardOnly?: boolean,
    tokens?: number[],
  ): Promise<{ loss: number; logprobs: number[] }>;
  /** The failure of an operation as its future reports it. */
  failure(path: string, body: Json | Uint8Array): Promise<{ error: string; category: string }>;
  dispose(): Promise<void>;
}

export const adam = (learning_rate = 0.1) => ({ adam_params: { learning_rate, beta1: 0.9, beta2: 0.95, eps: 1e-8 } });

export function crossEntropy(
  modelId: string,
  seqId: number,
  forwardOnly = false,
  tokens = [5, 6, 7, 8],
): ForwardBackwardRequest {
  const targets = Float64Array.from([...tokens.slice(1), 9]);
  return {
    ...{ modelId, seqId, forwardOnly, lossFn: "cross_entropy", lossConfig: {} },
    data: [
      {
        input: [{ kind: "text", tokens: Int32Array.from(tokens) }],
        lossInputs: {
          target_tokens: { dtype: "int64", values: targets, shape: [tokens.length] },
          weights: { dtype: "float32", values: new Float32Array(tokens.length).fill(1), shape: [tokens.length] },
        },
      },
    ],
  };
}

export async function testClient(options: Partial<ServerOptions> & { folder?: string } = {}): Promise<TestClient> {
  const folder = options.folder ?? mkdtempSync(join(tmpdir(), "hone-serve-"));
  const running = await openService({
    engines: [{ names: ["tabular", "other-name"], engine: tinyEngine() }],
    stateFolder: folder,
    features,
    gapSeconds: 0.05,
    pollSeconds: 5,
    ...options,
  });
  const request: TestClient["request"] = async (method, path, body, headers = {}) => {
    const bytes = body instanceof Uint8Array;
    return running.app.request(path, {
      method,
      headers: { "content-type": bytes ? "application/x-protobuf" : "application/json", ...headers },
      ...(body === undefined ? {} : { body: bytes ? Uint8Array.from(body) : JSON.stringify(body) }),
    });
  };
  const accepted = async (response: Response): Promise<Json> => {
    if (!response.ok) throw new Error(`${response.status}: ${await response.text()}`);
    return (await response.json()) as Json;
  };
  const client: TestClient = {
    ...running,
    request,
    post: async (path, body) => accepted(await request("POST", `/api/v1/${path}`, body)),
    collect: async (id) => request("POST", "/api/v1/retrieve_future", { request_id: id }),
    async result(path, body) {
      return client.collect((await accepted(await request("POST", `/api/v1/${path}`, body))).request_id);
    },
    async finish(path, body) {
      const found = await accepted(await client.result(path, body));
      if (found.error !== undefined) throw new Error(String(found.error));
      return found;
    },
    async failure(path, body) {
      const found = await accepted(await client.result(path, body));
      return found as { error: string; category: string };
    },
    async model({ seed = 1, number = 0, session } = {}) {
      const id = session ?? String((await client.post("create_session", { tags: [] })).session_id);
      const made = await client.finish("create_model", {
        ...{ session_id: id, model_seq_id: number, base_model: "tabular" },
        lora_config: { rank: 2, seed, train_unembed: true, train_mlp: true, train_attn: true },
      });
      return { session: id, id: String(made.model_id) };
    },
    async cross(id, seq, forwardOnly = false, tokens) {
      const response = await client.result(
        "forward_backward",
        encodeForwardBackwardRequest(crossEntropy(id, seq, forwardOnly, tokens)),
      );
      const { metrics, outputs } = decodeForwardBackwardOutput(new Uint8Array(await response.arrayBuffer()));
      return { loss: metrics["loss:sum"]!, logprobs: [...outputs[0]!.logprobs] };
    },
    async dispose() {
      await running.close();
      if (options.folder === undefined) removeFolder(folder);
    },
  };
  return client;
}

export async function samplesOf(response: Response) {
  return decodeSampleResponse(new Uint8Array(await response.arrayBuffer()));
}

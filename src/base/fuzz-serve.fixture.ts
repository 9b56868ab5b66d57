/** The Tinker server over the tabular engine, with a trained and saved model, as a target of random requests. */
import { mkdtempSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect } from "vitest";
import { crossEntropy, tinyEngine } from "../apps/server/client.fixture.ts";
import { features } from "../apps/server/features.ts";
import { startServer } from "../apps/server/server.ts";
import { encodeForwardBackwardRequest } from "../backends/tinker/messages.ts";
import { removeFolder } from "../temporary-folder.fixture.ts";
import { type FuzzRequest, mutate, type Template } from "./fuzz-request.fixture.ts";
import { type Answer, secrets, type Target } from "./fuzz-target.fixture.ts";
import { rawRequest } from "./raw-request.fixture.ts";

/** @param keyed with an API key */
export async function openServeTarget(keyed: boolean): Promise<Target> {
  const folder = mkdtempSync(join(tmpdir(), "hone-serve-"));
  const lines: string[] = [];
  const server = await startServer({
    engines: [{ names: ["tabular"], engine: tinyEngine() }],
    features,
    ...{ stateFolder: folder, host: "127.0.0.1", port: 0, apiKey: keyed ? secrets.api : null },
    ...{ gapSeconds: 0.01, pollSeconds: 0.3, write: (line: string) => lines.push(line) },
  });
  const key: Record<string, string> = keyed ? { "x-api-key": secrets.api } : {};
  const post = (path: string, body: unknown): Template => ({
    method: "POST",
    path: `/api/v1/${path}`,
    headers: key,
    body,
  });
  const other = (method: string, path: string, body?: unknown): Template => ({ ...post(path, body), method });
  const inProcess = async ({ method, path, headers, body }: FuzzRequest): Promise<Answer> => {
    const sent = body instanceof Uint8Array ? Uint8Array.from(body) : body;
    const init = { method, headers, ...(sent === undefined ? {} : { body: sent }) };
    const response = await server.app.fetch(new Request(`http://localhost${path}`, init));
    return { status: response.status, type: response.headers.get("content-type") ?? "", text: await response.text() };
  };
  const ask = async (template: Template) =>
    JSON.parse((await inProcess(mutate(template, () => 0))).text) as Record<string, string>;
  const collect = async (id: string): Promise<Answer> => {
    for (;;) {
      const answer = await inProcess(mutate(post("retrieve_future", { request_id: id }), () => 0));
      const waiting = answer.status === 408 || (answer.type.includes("json") && answer.text.includes('"try_again"'));
      if (!waiting) return answer;
    }
  };
  const done = async (template: Template) => collect((await ask(template)).request_id!);
  const { session_id } = await ask(
    post("create_session", { tags: ["t"], display_name: "n", user_metadata: { a: "b" } }),
  );
  const slot = { session_id, model_seq_id: 0 };
  const lora = { rank: 2, seed: 1, train_unembed: true, train_mlp: true, train_attn: true };
  await done(post("create_model", { ...slot, base_model: "tabular", lora_config: lora }));
  const model_id = `${session_id}:train:0`;
  const step = { model_id, seq_id: 2, adam_params: { learning_rate: 0.1, beta1: 0.9, beta2: 0.95, eps: 1e-8 } };
  await done({ ...post("forward_backward", encodeForwardBackwardRequest(crossEntropy(model_id, 1))) });
  await done(post("optim_step", step));
  await done(post("save_weights", { model_id, seq_id: 3, path: "saved", ttl_seconds: 7200 }));
  await ask(post("create_sampling_session", { session_id, sampling_session_seq_id: 0, base_model: "tabular" }));
  const sampling_session_id = `${session_id}:sample:0`;
  const checkpoint = `training_runs/${model_id}/checkpoints/weights/saved`;
  const tinker_path = `tinker://${model_id}/weights/saved`;
  const sampling_params = { max_tokens: 3, seed: 1, stop: ["x"], temperature: 1, top_k: -1, top_p: 1 };
  const prompt = { chunks: [{ type: "encoded_text", tokens: [5, 6, 7] }] };
  const sample = { sampling_session_id, seq_id: 1, num_samples: 2, prompt, sampling_params };
  const scores = { prompt_logprobs: true, topk_prompt_logprobs: 2, topk_sample_logprobs: 2 };
  const targets = { data: [5, -1, 6, 7], dtype: "int64", shape: [2, 2] };
  const create = post("create_session", { tags: ["t"], display_name: "n", user_metadata: { a: "b" } });
  return {
    templates: [
      create,
      ...[
        "healthz",
        "get_server_capabilities",
        "sessions?limit=2&offset=0",
        "training_runs?limit=3",
        "checkpoints?limit=2",
      ].map((path) => other("GET", path)),
      other("GET", `sessions/${session_id}`),
      other("GET", `training_runs/${model_id}`),
      other("GET", `training_runs/${model_id}/checkpoints`),
      other("GET", `samplers/${sampling_session_id}`),
      other("GET", `${checkpoint}/external_weights_urls`),
      other("GET", "billing/usage/events?starting_on=2030-01-01T00:00:00Z&ending_before=2030-01-02T00:00:00Z"),
      other("GET", "billing/usage/checkpoints/current?project_id=x"),
      other("POST", `${checkpoint}/publish`),
      other("PUT", `${checkpoint}/ttl`, { ttl_seconds: 7200 }),
      other("PUT", `sessions/${session_id}/project`, { project_id: "p" }),
      { method: "GET", path: "/downloads/x?file=y&expires=9&signature=z" },
      { method: "GET", path: "/metrics", headers: key },
      post("session_heartbeat", { session_id }),
      post("client/config", {}),
      post("telemetry", { events: [] }),
      post("get_info", { model_id }),
      post("weights_info", { tinker_path }),
      post("create_model", { ...slot, model_seq_id: 1, base_model: "tabular", lora_config: lora, user_metadata: {} }),
      post("load_weights", { ...slot, model_seq_id: 2, path: tinker_path, optimizer: true }),
      post("load_weights", { model_id, seq_id: 4, path: tinker_path, optimizer: false }),
      post("create_sampling_session", { session_id, sampling_session_seq_id: 1, model_path: tinker_path }),
      post("join_sampling_session", { sampling_session_id }),
      post("asample", sample),
      post("asample", { ...sample, seq_id: 2, ...scores, target_prompt_logprobs: targets }),
      post("asample_many", { requests: [sample, { ...sample, seq_id: 3, num_samples: 2 }] }),
      post("forward_backward", encodeForwardBackwardRequest(crossEntropy(model_id, 0))),
      post("forward_backward", encodeForwardBackwardRequest(crossEntropy(model_id, 0, true))),
      post("optim_step", { ...step, seq_id: null }),
      post("zero_grad", { model_id }),
      post("save_weights", { model_id, path: "again", overwrite: true, user_metadata: { a: 1 } }),
      post("save_weights_for_sampler", { model_id, sampling_session_seq_id: 5, kind: "inflight" }),
      post("save_weights_external", { model_id, path: "out" }),
      post("retrieve_future", { request_id: `${model_id}:1@x` }),
      post("retrieve_futures", {
        target: { sampling_session_id, cloned_sampler_id: 0 },
        prev_cursor: 0,
        timeout: 0.01,
      }),
      post("cancel_future", { request_id: "x" }),
      post("copy_weights", { source_path: tinker_path, ttl_seconds: 7200 }),
      post("sessions/search", {
        display_name: "n",
        statuses: [{ type: "active" }],
        limit: 2,
        cursor: { last_created_at: "2030-01-01T00:00:00Z", last_session_id: "x" },
      }),
      post("checkpoints/search", {
        limit: 2,
        cursor: { last_created_at: "2030-01-01T00:00:00Z", last_checkpoint_uuid: "x" },
      }),
    ],
    async send(request, random) {
      if (random() > 0.05) return inProcess(request);
      const { method, path, headers, body } = request;
      const answer = await rawRequest(server.url, { method, path, headers, ...(body === undefined ? {} : { body }) });
      return { status: answer.status, type: String(answer.headers["content-type"] ?? ""), text: answer.text };
    },
    checkError({ status, text }) {
      const body = JSON.parse(text) as { detail?: unknown; type?: unknown };
      if (status === 408) expect(body.type).toBe("try_again");
      else expect(body.detail).toEqual(expect.any(String));
    },
    async follow({ status, type, text }) {
      if (status !== 200 || text === "" || !type.includes("application/json")) return [];
      const { request_id: id, category } = JSON.parse(text) as { request_id?: string; category?: string };
      expect(category).not.toBe("server");
      if (typeof id !== "string" || !id.includes("@")) return [];
      const result = await collect(id);
      if (result.type.includes("json")) expect(JSON.parse(result.text).category).not.toBe("server");
      return [result];
    },
    secrets: [secrets.api, secrets.environment],
    async alive() {
      expect((await ask(create)).session_id).toEqual(expect.any(String));
      for (const line of lines) expect(line.trimEnd()).not.toMatch(/\p{Cc}/u);
      lines.length = 0;
    },
    url: server.url,
    async close() {
      await server.close();
      removeFolder(folder);
    },
  };
}

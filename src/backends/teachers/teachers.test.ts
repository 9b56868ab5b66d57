/** A server that answers wrongly is refused as a teacher. */
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { afterAll, beforeAll, expect, it } from "vitest";
import type { Sequence } from "../../trajectories/types.ts";
import type { Teacher } from "../engine.ts";
import { openServerTeacher } from "./server-teacher.ts";

let answer: { status?: number; prompt_logprobs?: unknown };
const server = createServer(({ url, method }, response) => {
  response.setHeader("content-type", "application/json");
  const send = (status: number, body: unknown) => response.writeHead(status).end(JSON.stringify(body));
  if (url === "/v1/models") return send(200, { data: [{ id: "strong", owned_by: "vllm", max_model_len: 64 }] });
  if (url === "/tokenize") return send(200, { tokens: [1, 2] });
  if (method !== "POST" || url !== "/v1/completions") return send(url === "/health" ? 200 : 404, {});
  const choice = { token_ids: [1], logprobs: { token_logprobs: [-1] }, finish_reason: "length" };
  send(answer.status ?? 200, { choices: [{ ...choice, prompt_logprobs: answer.prompt_logprobs }] });
});
let opened: { teacher: Teacher; close(): Promise<void> };

beforeAll(async () => {
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  const setting = "distillation.teacher_models.strong";
  const policy = { model: { name: "policy" } as never, images: undefined, encode: () => [1, 2] };
  opened = await openServerTeacher({ url, model: undefined, apiKey: undefined, setting }, policy, () => {});
});
afterAll(async () => {
  await opened.close();
  server.close();
});

const sequence: Sequence = { tokens: Int32Array.of(5, 6, 7), trained: Uint8Array.of(1, 1) };
const of = (token: number, logprob: number | null = -1) => ({ [token]: { logprob } });

it("scores each token of a reply", async () => {
  answer = { prompt_logprobs: [null, of(6, -0.5), { ...of(9), ...of(7, -2) }] };
  expect([...(await opened.teacher.logprobs([sequence]))]).toEqual([-0.5, -2]);
});

it.each<[string, typeof answer, string]>([
  ["fewer tokens", { prompt_logprobs: [null, of(6)] }, "log-probabilities of 2 tokens for a sequence of 3"],
  ["none", {}, "log-probabilities of 0 tokens for a sequence of 3"],
  ["other tokens", { prompt_logprobs: [null, of(6), of(8)] }, "prompt_logprobs without token 7 of the prompt"],
  ["NaN", { prompt_logprobs: [null, of(6), of(7, null)] }, "prompt_logprobs holds null"],
  ["an error", { status: 500 }, "answered 500"],
])("an answer with %s is refused", async (_, given, message) => {
  answer = given;
  await expect(opened.teacher.logprobs([sequence])).rejects.toThrow(message);
});

it.each<[string, unknown[], string]>([
  ["fewer positions", [null, of(6)], "its most likely tokens of 2 tokens for a sequence of 3"],
  ["fewer tokens", [null, of(6), of(7)], "returned 1 likely tokens instead of 2"],
])("likely tokens for %s are refused", async (_, prompt_logprobs, message) => {
  answer = { prompt_logprobs };
  await expect(opened.teacher.mostLikely!([sequence], 2)).rejects.toThrow(message);
});

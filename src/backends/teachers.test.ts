/** A server that answers wrongly is refused as a teacher. */
// Slow: a server that does not answer in time.

import { createServer } from "node:http";
import { setTimeout as sleep } from "node:timers/promises";
import { afterAll, beforeAll, beforeEach, expect, it } from "vitest";
import { listen } from "../base/http.ts";
import type { Sequence } from "../trajectories/types.ts";
import type { Teacher } from "./engine.ts";
import { openServerTeacher, type TeacherServer } from "./teachers.ts";

/** `failures`: the number of requests that are answered with 500 first; `seconds`: the time until each answer. */
let answer: { failures?: number; seconds?: number; status?: number; prompt_logprobs?: unknown };
let requests = 0;
const server = createServer(async ({ url, method }, response) => {
  response.setHeader("content-type", "application/json");
  const send = (status: number, body: unknown) => response.writeHead(status).end(JSON.stringify(body));
  if (url === "/v1/models") return send(200, { data: [{ id: "strong", owned_by: "vllm", max_model_len: 64 }] });
  if (url === "/tokenize") return send(200, { tokens: [1, 2] });
  if (method !== "POST" || url !== "/v1/completions") return send(url === "/health" ? 200 : 404, {});
  requests++;
  if (answer.failures) {
    answer.failures--;
    return send(500, { error: "out of memory" });
  }
  if (answer.seconds) await sleep(answer.seconds * 1000);
  const choice = { token_ids: [1], logprobs: { token_logprobs: [-1] }, finish_reason: "length" };
  send(answer.status ?? 200, { choices: [{ ...choice, prompt_logprobs: answer.prompt_logprobs }] });
});
let teacher: Teacher;
let url: string;
let notes: string[];
const closing: (() => Promise<void>)[] = [];

async function open(limits: Pick<TeacherServer, "timeoutSeconds"> = {}): Promise<Teacher> {
  const setting = "distillation.teacher_models.strong";
  const policy = { model: { name: "policy" } as never, images: undefined, encode: () => [1, 2] };
  const given = { url, model: undefined, apiKey: undefined, setting, pauseSeconds: 0.01, ...limits };
  const opened = await openServerTeacher(given, policy, (text) => notes.push(text.replace(url, "URL")));
  closing.push(opened.close);
  return opened.teacher;
}

beforeAll(async () => {
  url = await listen(server);
});
beforeEach(async () => {
  [requests, notes] = [0, []];
  teacher = await open();
});
afterAll(async () => {
  for (const close of closing) await close();
  server.closeAllConnections();
  server.close();
});

const sequence: Sequence = { tokens: Int32Array.of(5, 6, 7), trained: Uint8Array.of(1, 1) };
const of = (token: number, logprob: number | null = -1) => ({ [token]: { logprob } });

it("scores each token of a reply", async () => {
  answer = { prompt_logprobs: [null, of(6, -0.5), { ...of(9), ...of(7, -2) }] };
  expect([...(await teacher.logprobs([sequence]))]).toEqual([-0.5, -2]);
});

it("repeats the requests that failed, counts them, and reports them in one line", async () => {
  answer = { failures: 3, prompt_logprobs: [null, of(6, -0.5), of(7, -2)] };
  expect([...(await teacher.logprobs([sequence, sequence]))]).toEqual([-0.5, -2, -0.5, -2]);
  expect([requests, teacher.retries]).toEqual([5, 3]);
  expect(notes).toEqual([
    expect.stringMatching(/^retrying requests to the teacher at URL after: .* answered 500: .*out of/),
  ]);
});

it("gives up after four retries of a request", async () => {
  answer = { failures: 9 };
  await expect(teacher.logprobs([sequence])).rejects.toThrow("answered 500");
  expect([requests, teacher.retries, notes.length]).toEqual([5, 4, 1]);
});

it("waits for a slow server, up to the time limit", async () => {
  answer = { seconds: 1.5, prompt_logprobs: [null, of(6), of(7)] };
  expect([...(await (await open({ timeoutSeconds: 10 })).logprobs([sequence]))]).toEqual([-1, -1]);
  answer = { ...answer, seconds: 10 };
  const hasty = await open({ timeoutSeconds: 1 });
  await expect(hasty.logprobs([sequence])).rejects.toMatchObject({
    code: "server_unreachable",
    message: expect.stringMatching(/does not answer: a request made no progress for 1 s$/),
    hint: "restart it",
  });
});

it("is not asked again if it refuses the request", async () => {
  answer = { status: 400 };
  await expect(teacher.logprobs([sequence])).rejects.toThrow("answered 400");
  expect([requests, teacher.retries]).toEqual([1, 0]);
});

it.each<[string, typeof answer, string]>([
  ["fewer tokens", { prompt_logprobs: [null, of(6)] }, "log-probabilities of 2 tokens for a sequence of 3"],
  ["none", {}, "log-probabilities of 0 tokens for a sequence of 3"],
  ["other tokens", { prompt_logprobs: [null, of(6), of(8)] }, "prompt_logprobs without token 7 of the prompt"],
  ["NaN", { prompt_logprobs: [null, of(6), of(7, null)] }, "prompt_logprobs holds null"],
])("an answer with %s is refused", async (_, given, message) => {
  answer = given;
  await expect(teacher.logprobs([sequence])).rejects.toThrow(message);
});

it.each<[string, unknown[], string]>([
  ["fewer positions", [null, of(6)], "its most likely tokens of 2 tokens for a sequence of 3"],
  ["fewer tokens", [null, of(6), of(7)], "returned 1 likely tokens instead of 2"],
])("likely tokens for %s are refused", async (_, prompt_logprobs, message) => {
  answer = { prompt_logprobs };
  await expect(teacher.mostLikely!([sequence], 2)).rejects.toThrow(message);
});

// Slow: many servers with a journal each.
import { afterEach, beforeEach, expect, test } from "vitest";
import { decodeForwardBackwardOutput, encodeForwardBackwardRequest } from "../../backends/tinker/messages.ts";
import { adam, crossEntropy, type TestClient, testClient } from "./client.fixture.ts";

let client: TestClient;
beforeEach(async () => {
  client = await testClient();
});
afterEach(() => client.dispose());

const backward = (...given: Parameters<typeof crossEntropy>) => encodeForwardBackwardRequest(crossEntropy(...given));

test("a model learns: the loss is the sum of the outputs, and falls", async () => {
  const { id } = await client.model();
  const before = await client.cross(id, 1);
  expect(before.loss).toBeCloseTo(-before.logprobs.reduce((sum, value) => sum + value, 0), 5);
  const { metrics } = await client.finish("optim_step", { model_id: id, seq_id: 2, ...adam() });
  expect((metrics as Record<string, number>).grad_norm).toBeGreaterThan(0);
  expect((await client.cross(id, 3, true)).loss).toBeLessThan(before.loss - 0.1);
});

test("gradients add up over datums and calls, and a forward adds nothing", async () => {
  const [one, two] = [await client.model({ number: 0 }), await client.model({ number: 0 })];
  const request = crossEntropy(one.id, 1);
  await client.result(
    "forward_backward",
    encodeForwardBackwardRequest({ ...request, data: [...request.data, ...request.data] }),
  );
  await client.cross(two.id, 1);
  await client.cross(two.id, 2, true);
  await client.cross(two.id, 3);
  const norm = async (id: string, seq: number) =>
    ((await client.finish("optim_step", { model_id: id, seq_id: seq, ...adam() })).metrics as Record<string, number>)
      .grad_norm;
  expect(await norm(one.id, 2)).toBeCloseTo((await norm(two.id, 4))!, 6);
});

test("requests run by their ids though they arrive in another order", async () => {
  const { id } = await client.model();
  const third = client.result("forward_backward", backward(id, 3, true));
  const second = client.finish("optim_step", { model_id: id, seq_id: 2, ...adam() });
  const first = await client.cross(id, 1);
  await second;
  const { metrics } = decodeForwardBackwardOutput(new Uint8Array(await (await third).arrayBuffer()));
  expect(metrics["loss:sum"]).toBeLessThan(first.loss);
});

test("a repeated request is answered with the same future and runs once", async () => {
  const { id } = await client.model();
  await client.cross(id, 1);
  const body = { model_id: id, seq_id: 2, ...adam() };
  const [first, again] = [await client.post("optim_step", body), await client.post("optim_step", body)];
  expect(again).toEqual(first);
  await client.collect(first.request_id);
  expect(await client.post("optim_step", body)).toEqual(first);
  const after = await client.cross(id, 3, true);
  // Had the step been taken twice, Adam's second one would have moved the weights again.
  const other = await client.model();
  await client.cross(other.id, 1);
  await client.finish("optim_step", { model_id: other.id, seq_id: 2, ...adam() });
  expect((await client.cross(other.id, 3, true)).logprobs).toEqual(after.logprobs);
});

test("create_model is answered once for each number, and the seed makes the model", async () => {
  const { session, id } = await client.model({ seed: 7 });
  const again = await client.model({ seed: 8, session });
  expect(again.id).toBe(id);
  const other = await client.model({ seed: 7 });
  for (const model of [id, other.id]) {
    await client.cross(model, 1);
    await client.finish("optim_step", { model_id: model, seq_id: 2, ...adam() });
  }
  expect(await client.cross(id, 3, true)).toEqual(await client.cross(other.id, 3, true));
});

test("models do not touch each other", async () => {
  const [one, two] = [await client.model(), await client.model()];
  const before = await client.cross(two.id, 1, true);
  await client.cross(one.id, 1);
  await client.finish("optim_step", { model_id: one.id, seq_id: 2, ...adam() });
  expect(await client.cross(two.id, 2, true)).toEqual(before);
});

test("a lost request is skipped after a while, so that the client continues", async () => {
  const { id } = await client.model();
  expect((await client.cross(id, 2, true)).loss).toBeGreaterThan(0);
  const late = await client.failure("forward_backward", backward(id, 1, true));
  expect(late).toMatchObject({ category: "user", error: expect.stringMatching(/too late/) });
});

const mistakes: [name: string, change: (request: ReturnType<typeof crossEntropy>) => object, text: RegExp][] = [
  ["an unknown loss", () => ({ lossFn: "pppo" }), /Did you mean ppo/],
  ["a setting that the loss does not have", () => ({ lossConfig: { epsilon: 0.2 } }), /has no setting epsilon/],
  [
    "an unknown token",
    ({ data: [datum] }) => ({ data: [{ ...datum, input: [{ kind: "text", tokens: Int32Array.of(5, 6, 99, 8) }] }] }),
    /datum 0: token 99/,
  ],
  [
    "a negative token",
    ({ data: [datum] }) => ({ data: [{ ...datum, input: [{ kind: "text", tokens: Int32Array.of(-1, 6, 7, 8) }] }] }),
    /token -1/,
  ],
  [
    "an image",
    ({ data: [datum] }) => ({ data: [datum, { ...datum, input: [{ kind: "image", data: Uint8Array.of(1) }] }] }),
    /datum 1: chunk 0: the input has an image, but tabular reads only text/,
  ],
  [
    "inputs of another length",
    ({ data: [datum] }) => ({ data: [{ ...datum, input: [{ kind: "text", tokens: Int32Array.of(5) }] }] }),
    /\[4\]; with 1 input tokens/,
  ],
  ["no data", () => ({ data: [] }), /contains no data/],
  [
    "inputs of another loss",
    () => ({ lossFn: "importance_sampling" }),
    /weights, which importance_sampling does not accept/,
  ],
];

test.each(mistakes)(
  "%s is the user's mistake, reported by the future, and the next request runs",
  async (_, change, text) => {
    const { id } = await client.model();
    const request = crossEntropy(id, 1);
    const wrong = encodeForwardBackwardRequest({ ...request, ...(change(request) as object) });
    expect(await client.failure("forward_backward", wrong)).toMatchObject({
      category: "user",
      error: expect.stringMatching(text),
    });
    expect((await client.cross(id, 2)).loss).toBeGreaterThan(0);
  },
);

test("targets may be any tokens, several to a position", async () => {
  const { id } = await client.model();
  const request = crossEntropy(id, 1, true);
  const targets = { dtype: "int64" as const, values: Float64Array.of(1, 2, 3, 4, 5, 6, 7, 8), shape: [4, 2] };
  const weights = { dtype: "float32" as const, values: Float32Array.of(1, 0, 0, 1, 0, 0, -2, 0), shape: [4, 2] };
  const several = { ...request, data: [{ ...request.data[0]!, lossInputs: { target_tokens: targets, weights } }] };
  const response = await client.result("forward_backward", encodeForwardBackwardRequest(several));
  const { outputs, metrics } = decodeForwardBackwardOutput(new Uint8Array(await response.arrayBuffer()));
  expect([outputs[0]!.trailingShape, outputs[0]!.logprobs.length]).toEqual([[2], 8]);
  const p = outputs[0]!.logprobs;
  expect(metrics["loss:sum"]).toBeCloseTo(-(p[0]! + p[3]! - 2 * p[6]!), 5);
});

test("a loss that overflows leaves no part of its gradient behind", async () => {
  const [broken, whole] = [await client.model(), await client.model()];
  const request = crossEntropy(broken.id, 1);
  const tokens = request.data[0]!.lossInputs.target_tokens!;
  const values = (value: number) => ({
    dtype: "float32" as const,
    values: new Float32Array(4).fill(value),
    shape: [4],
  });
  const overflow = {
    ...request,
    lossFn: "importance_sampling",
    data: [
      { ...request.data[0]!, lossInputs: { target_tokens: tokens, logprobs: values(-1e4), advantages: values(1) } },
    ],
  };
  expect(await client.failure("forward_backward", encodeForwardBackwardRequest(overflow))).toMatchObject({
    category: "user",
  });
  for (const [model, seq] of [
    [broken, 2],
    [whole, 1],
  ] as const) {
    await client.cross(model.id, seq);
    await client.finish("optim_step", { model_id: model.id, seq_id: seq + 1, ...adam() });
  }
  expect(await client.cross(broken.id, 4, true)).toEqual(await client.cross(whole.id, 3, true));

  // The failure also drops the gradient of the successful call, and the step reports it instead of using half a gradient.
  await client.cross(broken.id, 5);
  await client.failure("forward_backward", encodeForwardBackwardRequest({ ...overflow, seqId: 6 }));
  const step = { model_id: broken.id, seq_id: 7, ...adam() };
  expect((await client.failure("optim_step", step)).error).toMatch(/Run the forward_backward calls of this step again/);
  await client.cross(broken.id, 8);
  await client.finish("optim_step", { ...step, seq_id: 9 });
});

test("parameters of the optimizer are checked", async () => {
  const { id } = await client.model();
  const step = (seq_id: number, adam_params: object) =>
    client.failure("optim_step", { model_id: id, seq_id, adam_params });
  // The client sends a NaN as null.
  const rate = "adam_params.learning_rate must be a number of at least 0, but is";
  expect((await step(1, { learning_rate: null })).error).toBe(`${rate} null`);
  expect(await step(2, { learning_rate: -1 })).toMatchObject({ error: `${rate} -1`, category: "user" });
  expect((await step(3, { learning_rate: 0.1, beta1: 1 })).error).toMatch(/beta1/);
  expect((await step(4, { learning_rate: 0.1, momentum: 1 })).error).toMatch(/momentum/);
  const other = { model_id: id, seq_id: 5, optimizer_params: { type: "dimuon" } };
  expect((await client.failure("optim_step", other)).error).toMatch(/dimuon.*AdamW/);
  // A step without a gradient moves nothing.
  const before = await client.cross(id, 6, true);
  await client.finish("optim_step", { model_id: id, seq_id: 7, ...adam() });
  expect(await client.cross(id, 8, true)).toEqual(before);
});

test("models that cannot be created are refused, and the error lists what is available", async () => {
  const session = String((await client.post("create_session", {})).session_id);
  const create = (more: object) =>
    client.request("POST", "/api/v1/create_model", {
      session_id: session,
      model_seq_id: 0,
      base_model: "tabular",
      ...more,
    });
  const cases: [object, number, RegExp][] = [
    [{ base_model: "tabulra" }, 400, /Did you mean tabular/],
    [{ optimizer_config: { type: "dimuon", version: 1 } }, 400, /AdamW/],
    [{ lora_config: { rank: 0 } }, 400, /lora_config.rank must be a whole number from 1 to 16384, but is 0/],
    [{ lora_config: { rank: 2 ** 32, seed: -1 } }, 400, /rank must .*; lora_config.seed must be .*, but is -1/],
    [{ lora_config: { rank: 4, train_attn: false, train_mlp: false, train_unembed: false } }, 400, /at least one/],
    [{ session_id: "nobody" }, 404, /no session/],
  ];
  for (const [more, status, text] of cases) {
    const response = await create(more);
    expect([response.status, await response.text()]).toEqual([status, expect.stringMatching(text)]);
  }
  const made = await client.finish("create_model", { session_id: session, model_seq_id: 1, base_model: "other-name" });
  expect(await client.post("get_info", { model_id: made.model_id })).toMatchObject({
    model_data: { model_name: "other-name" },
    lora_rank: 32,
    is_lora: true,
  });
});

test("a full queue answers 429, except to the request whose turn it is", async () => {
  await client.dispose();
  client = await testClient({ maxWaitingOperations: 1, gapSeconds: 60 });
  const { id } = await client.model();
  const step = (seq_id: number) => client.request("POST", "/api/v1/optim_step", { model_id: id, seq_id, ...adam() });
  expect((await step(2)).status).toBe(200);
  expect((await step(3)).status).toBe(429);
  expect((await step(1)).status).toBe(200);
});

test("a poll reports which missing request delays its operation, and for how long", async () => {
  const waiting = await testClient({ gapSeconds: 30, pollSeconds: 0.05 });
  const { id } = await waiting.model();
  const { request_id } = await waiting.post("optim_step", { model_id: id, seq_id: 2, ...adam() });
  const polled = await waiting.collect(request_id);
  expect(polled.status).toBe(200);
  expect(await polled.json()).toMatchObject({
    type: "try_again",
    queue_state: "paused_capacity",
    queue_state_reason: expect.stringMatching(
      /request 1 of .* has not arrived.* (29|30) s more \(hone serve --gap-seconds\)/,
    ),
  });
  await waiting.cross(id, 1);
  expect(await (await waiting.collect(request_id)).json()).toHaveProperty("metrics");
  await waiting.dispose();
});

test("an SDK that is too old gets an error with the versions that work", async () => {
  for (const path of ["forward_backward", "forward"]) {
    const headers = { "user-agent": "AsyncTinker/Python 0.15.0" };
    const response = await client.request("POST", `/api/v1/${path}`, { model_id: "x" }, headers);
    expect([response.status, await response.json()]).toEqual([
      400,
      { detail: expect.stringMatching(/SDK 0\.15\.0 .* too old.* works with 0\.25\.0 and later/) },
    ]);
  }
});

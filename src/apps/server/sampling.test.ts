// Slow: many servers with a journal each.
import { afterEach, beforeEach, expect, test } from "vitest";
import { testFolder } from "../../temporary-folder.fixture.ts";
import { tabularEngine } from "../../testing/tabular-engine.ts";
import { adam, samplesOf, type TestClient, testClient, tinyEngine } from "./client.fixture.ts";

let client: TestClient;
let folder: string;
beforeEach(async () => {
  folder = testFolder("serve");
  client = await testClient({ folder });
});
afterEach(() => client.dispose());

type Json = Record<string, unknown>;
const prompt = (tokens: number[]) => ({ chunks: [{ type: "encoded_text", tokens }] });

async function baseSampler(number = 0) {
  const session = String((await client.post("create_session", {})).session_id);
  const body = { session_id: session, sampling_session_seq_id: number, base_model: "tabular" };
  return { session, id: String((await client.post("create_sampling_session", body)).sampling_session_id) };
}

let seq = 0;
const body = (sampler: string, more: Json = {}): Json => ({
  sampling_session_id: sampler,
  seq_id: seq++,
  num_samples: 1,
  prompt: prompt([5, 6, 7]),
  ...more,
  sampling_params: { max_tokens: 8, seed: 1, stop: [], ...(more.sampling_params as Json) },
});
const sample = async (sampler: string, more: Json = {}) =>
  samplesOf(await client.result("asample", body(sampler, more)));
const mistake = async (sampler: string, more: Json) => {
  const { error, category } = await client.failure("asample", body(sampler, more));
  expect(category).toBe("user");
  return error;
};

test("samples of a request differ, and a seed reproduces them", async () => {
  const { id } = await baseSampler();
  const first = await sample(id, { num_samples: 6 });
  expect(new Set(first.sequences.map(({ tokens }) => tokens.join())).size).toBeGreaterThan(3);
  expect(await sample(id, { num_samples: 6 })).toEqual(first);
  expect(await sample(id, { num_samples: 6, sampling_params: { seed: 2 } })).not.toEqual(first);
  expect((await sample(id)).sequences[0]).toEqual(first.sequences[0]);
  const [without, again] = [
    await sample(id, { sampling_params: { seed: null, max_tokens: 20 } }),
    await sample(id, { sampling_params: { seed: null, max_tokens: 20 } }),
  ];
  expect(again).not.toEqual(without);
});

test("each sequence has an id, and a repeated id is the same request, also beyond 2^53", async () => {
  const { id } = await baseSampler();
  const text = (digits: string) =>
    JSON.stringify({ ...body(id, { num_samples: 2, sampling_params: { seed: null } }), seq_id: "S" }).replace(
      '"S"',
      digits,
    );
  const post = async (digits: string) => {
    const response = await client.app.request("/api/v1/asample", {
      method: "POST",
      body: text(digits),
      headers: { "content-type": "application/json" },
    });
    return (await response.json()) as { request_id: string; sample_sequence_ids: string[] };
  };
  const [one, repeated, next] = [
    await post("1000000000000000000"),
    await post("1000000000000000000"),
    await post("1000000000000000001"),
  ];
  expect(repeated).toEqual(one);
  expect(next.request_id).not.toBe(one.request_id);
  expect(new Set([...one.sample_sequence_ids, ...next.sample_sequence_ids]).size).toBe(4);
});

test("stops at the model's end token, at given tokens or texts, or not at all, and keeps the stop in the sample", async () => {
  const { id } = await baseSampler();
  const run = async (stop: unknown, seed = 1) =>
    (await sample(id, { num_samples: 8, sampling_params: { max_tokens: 40, stop, seed } })).sequences;
  // Token 0 ends a turn; without an end 40 tokens of 13 hold one almost surely.
  const never = await run([]);
  expect(never.every(({ tokens, stopReason }) => tokens.length === 40 && stopReason === "length")).toBe(true);
  expect(never.some(({ tokens }) => tokens.includes(0))).toBe(true);
  const own = await run(null);
  expect(own.every(({ tokens }) => !tokens.slice(0, -1).includes(0))).toBe(true);
  expect(own.some(({ tokens, stopReason }) => tokens.at(-1) === 0 && stopReason === "stop")).toBe(true);
  const byToken = await run([7]);
  expect(byToken.every(({ tokens }) => [0, 7].includes(tokens.at(-1)!) && !tokens.slice(0, -1).includes(7))).toBe(true);
  // Token 6 is the letter b, which is in no name of a special token.
  const byText = await run("b");
  expect(byText.every(({ tokens }) => [0, 6].includes(tokens.at(-1)!) && !tokens.slice(0, -1).includes(6))).toBe(true);
  expect(await run(["b", "c"])).not.toEqual(byText);
  expect(await mistake(id, { sampling_params: { stop: [""] } })).toMatch(/empty text/);
  expect(await mistake(id, { sampling_params: { stop: [7, 999] } })).toMatch(
    /stop: token 999 is not in the vocabulary/,
  );
  expect(await mistake(id, { sampling_params: { stop: [-1] } })).toMatch(/stop must be a text, a list/);
});

test("log-probabilities are at the sampling temperature and without filters", async () => {
  const { id } = await baseSampler();
  const vocabulary = tinyEngine().model.vocabularySize;
  const at = async (temperature: number, top_k = -1) => {
    const { sequences } = await sample(id, {
      topk_sample_logprobs: vocabulary,
      sampling_params: { temperature, top_k, max_tokens: 1 },
    });
    const { top, tokens, logprobs } = sequences[0]!;
    const all = new Map(Array.from(top!.tokens, (token, index) => [token, top!.logprobs[index]!]));
    expect(logprobs[0]).toBeCloseTo(all.get(tokens[0]!)!, 5);
    return all;
  };
  const [plain, hot] = [await at(1), await at(2, 3)];
  const total = Math.log([...plain.values()].reduce((sum, value) => sum + Math.exp(value / 2), 0));
  for (const [token, value] of plain) expect(hot.get(token)).toBeCloseTo(value / 2 - total, 4);
  expect(await at(0)).toEqual(plain);
});

test("log-probabilities of the prompt: its own tokens, the likeliest ones, and chosen ones", async () => {
  const { id } = await baseSampler();
  const tokens = [5, 6, 7, 8];
  const whole = await sample(id, { prompt: prompt(tokens), prompt_logprobs: true, topk_prompt_logprobs: 3 });
  expect(whole.promptLogprobs).toHaveLength(4);
  expect(whole.promptLogprobs![0]).toBeNaN();
  const target = async (data: number[], more: Json) => {
    const response = await client.result(
      "asample",
      body(id, { prompt: prompt(tokens), target_prompt_logprobs: { data, dtype: "int64", ...more } }),
    );
    const { message, toPlain } = await import("../../backends/tinker/messages.ts");
    const type = message("SampleResponse");
    const plain = type.toObject(type.decode(new Uint8Array(await response.arrayBuffer())), toPlain);
    const { decodeTensor } = await import("../../backends/tinker/tensors.ts");
    return { plain: plain.target_prompt_logprobs, tensor: decodeTensor(plain.target_prompt_logprobs) };
  };
  // The prompt's own next tokens in the first column, nothing or something else in the second.
  const { tensor } = await target([6, -1, 7, 9, 8, -1], { shape: [3, 2] });
  expect([tensor.values[0], tensor.values[2], tensor.values[4]]).toEqual([...whole.promptLogprobs!.slice(1)]);
  expect([tensor.values[1], tensor.values[5]]).toEqual([0, 0]);
  expect(tensor.values[3]).toBeLessThan(0);
  const sparse = await target([7, 9], { shape: [3, 2], sparse_crow_indices: [0, 0, 2, 2], sparse_col_indices: [0, 1] });
  expect(sparse.plain.sparse_csr).toBeDefined();
  expect([...sparse.tensor.values]).toEqual([0, 0, tensor.values[2], tensor.values[3], 0, 0]);
  const lastOnly = await sample(id, { prompt: prompt(tokens), prompt_logprobs: true, prompt_logprobs_last_n: 1 });
  expect([...lastOnly.promptLogprobs!].map(Number.isNaN)).toEqual([true, true, true, false]);
  expect(await mistake(id, { prompt_logprobs: true, prompt_logprobs_last_n: 3 })).toMatch(/the prompt has 3 tokens/);
  expect(await mistake(id, { target_prompt_logprobs: { data: [1], dtype: "int64", shape: [1, 1] } })).toMatch(
    /\[2, K\]/,
  );
});

test("prompt_alt_tokens_k draws from the model's distribution at each place of the prompt", async () => {
  const { message, toPlain } = await import("../../backends/tinker/messages.ts");
  const { decodeTensor } = await import("../../backends/tinker/tensors.ts");
  const type = message("SampleResponse");
  const { id } = await baseSampler();
  const tokens = [5, 6, 5, 6];
  const drawn = async (count: number, temperature: number, seed = 1) => {
    const more = { prompt: prompt(tokens), prompt_alt_tokens_k: count };
    const response = await client.result("asample", body(id, { ...more, sampling_params: { temperature, seed } }));
    const plain = type.toObject(type.decode(new Uint8Array(await response.arrayBuffer())), toPlain);
    return { ids: decodeTensor(plain.prompt_alt_tokens.tokens), logs: decodeTensor(plain.prompt_alt_tokens.logprobs) };
  };
  const { ids, logs } = await drawn(400, 1);
  expect([ids.shape, logs.shape, ids.dtype, logs.dtype]).toEqual([[3, 400], [3, 400], "int64", "float32"]);
  const after = await Promise.all(
    [1, 2, 3].map((end) =>
      sample(id, { prompt: prompt(tokens.slice(0, end)), topk_sample_logprobs: tinyEngine().model.vocabularySize }),
    ),
  );
  const logOf = (place: number, token: number) => {
    const top = after[place]!.sequences[0]!.top!;
    return top.logprobs[top.tokens.indexOf(token)]!;
  };
  ids.values.forEach((token, index) => {
    expect(logs.values[index]).toBeCloseTo(logOf(Math.floor(index / 400), token), 5);
  });
  // As often as it is likely, and other tokens at the same context in another place.
  const share = [...ids.values.slice(0, 400)].filter((token) => token === 6).length / 400;
  expect(Math.abs(share - Math.exp(logOf(0, 6)))).toBeLessThan(0.1);
  expect(ids.values.slice(0, 400)).not.toEqual(ids.values.slice(800));
  expect(await drawn(3, 1, 7)).toEqual(await drawn(3, 1, 7));
  expect((await drawn(3, 1, 8)).ids).not.toEqual((await drawn(3, 1, 7)).ids);
  const greedy = [...(await drawn(2, 0)).ids.values];
  expect(new Set([greedy[0], greedy[1], greedy[4], greedy[5]]).size).toBe(1);
});

test("requests that are wrong are the user's mistakes", async () => {
  const { id } = await baseSampler();
  expect(await mistake(id, { prompt: prompt([]) })).toMatch(/no tokens/);
  expect(await mistake(id, { prompt: prompt([5, 99]) })).toMatch(/token 99/);
  expect(await mistake(id, { prompt: { chunks: [{ type: "image", data: "", format: "png" }] } })).toMatch(
    /chunk 0: the input has an image, but tabular reads only text/,
  );
  expect(await mistake(id, { sampling_params: { max_tokens: 0 } })).toMatch(/max_tokens/);
  expect(await mistake(id, { sampling_params: { temperature: -1 } })).toMatch(/temperature/);
  expect(await mistake(id, { sampling_params: { top_p: 2 } })).toMatch(/top_p/);
  expect(await mistake(id, { sampling_params: { min_q: 2 } })).toMatch(/min_q/);
  expect(await mistake(id, { prompt_alt_tokens_k: 2 ** 21 })).toMatch(/at most 4194304/);
  expect(await mistake(id, { record_stability_info: true })).toMatch(/stable_reinforce/);
  for (const [path, more, status] of [
    ["asample", { sampling_session_id: "nobody:sample:0" }, 404],
    ["asample", { sampling_session_id: null }, 400],
    ["create_sampling_session", { session_id: id.split(":")[0], sampling_session_seq_id: 7, base_model: "no" }, 400],
    ["create_sampling_session", { session_id: id.split(":")[0], sampling_session_seq_id: 7 }, 400],
    [
      "create_sampling_session",
      { session_id: id.split(":")[0], sampling_session_seq_id: 7, model_path: "tinker://a/weights/b" },
      400,
    ],
  ] as const) {
    expect((await client.request("POST", `/api/v1/${path}`, { ...body(id), ...more })).status).toBe(status);
  }
});

test("a sampler keeps its weights after a restart, unless it was created to use the newest ones", async () => {
  const { session, id } = await client.model();
  const step = async (at: number) => {
    await client.cross(id, at);
    await client.finish("optim_step", { model_id: id, seq_id: at + 1, ...adam(1) });
  };
  const snapshot = async (at: number, more: Json) =>
    client.finish("save_weights_for_sampler", { model_id: id, seq_id: at, ...more });
  await step(1);
  const frozen = String((await snapshot(3, { sampling_session_seq_id: 0 })).sampling_session_id);
  const inflight = String((await snapshot(4, { sampling_session_seq_id: 1, kind: "inflight" })).sampling_session_id);
  const named = String((await snapshot(5, { path: "s" })).path);
  const make = { session_id: session, sampling_session_seq_id: 2, model_path: named };
  const fromPath = String((await client.post("create_sampling_session", make)).sampling_session_id);
  const answer = async (sampler: string) =>
    (await sample(sampler, { num_samples: 4, sampling_params: { max_tokens: 12 } })).sequences;
  const before = await answer(frozen);
  expect([await answer(inflight), await answer(fromPath)]).toEqual([before, before]);
  await step(6);
  await snapshot(8, { sampling_session_seq_id: 3, kind: "inflight" });
  expect([await answer(frozen), await answer(fromPath)]).toEqual([before, before]);
  expect(await answer(inflight)).not.toEqual(before);
  await client.close();
  client = await testClient({ folder });
  expect([await answer(frozen), await answer(fromPath)]).toEqual([before, before]);
  const get = await client.request("GET", `/api/v1/samplers/${fromPath}`);
  expect(await get.json()).toEqual({ sampler_id: fromPath, base_model: "tabular", model_path: named });
  // Sampled log-probabilities are the trained model's.
  expect(await (await client.request("GET", `/api/v1/sessions/${session}`)).json()).toMatchObject({
    training_run_ids: [id],
    sampler_ids: [frozen, inflight, fromPath, `${session}:sample:3`],
  });
});

test("the trained model and its sampler agree on log-probabilities", async () => {
  const { id } = await client.model();
  await client.cross(id, 1);
  await client.finish("optim_step", { model_id: id, seq_id: 2, ...adam(1) });
  const { logprobs } = await client.cross(id, 3, true, [5, 6, 7, 8]);
  const made = await client.finish("save_weights_for_sampler", { model_id: id, seq_id: 4, sampling_session_seq_id: 0 });
  const { promptLogprobs } = await sample(String(made.sampling_session_id), {
    prompt: prompt([5, 6, 7, 8]),
    prompt_logprobs: true,
  });
  expect([...promptLogprobs!.slice(1)]).toEqual(logprobs.slice(0, 3));
});

test("old unnamed weights are dropped, except for the newest; named ones stay", async () => {
  let now = new Date("2030-01-01T00:00:00Z");
  await client.close();
  client = await testClient({ folder, now: () => now });
  const { session, id } = await client.model();
  const samplers: string[] = [];
  for (const number of [0, 1]) {
    const made = await client.finish("save_weights_for_sampler", {
      model_id: id,
      seq_id: number + 1,
      sampling_session_seq_id: number,
    });
    samplers.push(String(made.sampling_session_id));
  }
  now = new Date("2030-01-01T00:50:00Z");
  await client.post("session_heartbeat", { session_id: session });
  now = new Date("2030-01-01T01:30:00Z");
  await client.sweep();
  expect(await mistake(samplers[0]!, {})).toMatch(/were dropped/);
  expect((await sample(samplers[1]!)).sequences).toHaveLength(1);

  // A fast trainer makes many of them, and keeps few for long.
  for (let number = 2; number < 22; number++) {
    const body = { model_id: id, seq_id: number + 1, sampling_session_seq_id: number };
    await client.finish("save_weights_for_sampler", body);
  }
  now = new Date("2030-01-01T01:40:00Z");
  await client.sweep();
  const { samplers: records } = client.service.context.store.sessions.get(session)!;
  expect(records.filter(({ weights }) => weights !== "gone").map(({ number }) => number)).toEqual(
    Array.from({ length: 16 }, (_, index) => index + 6),
  );
});

test("a request that is cancelled ends", async () => {
  const { id } = await baseSampler();
  const { request_id } = await client.post("asample", body(id, { sampling_params: { max_tokens: 1_000_000 } }));
  await client.post("cancel_future", { request_id });
  expect(await (await client.collect(request_id)).json()).toMatchObject({ error: "the request was cancelled" });
});

test("ended requests are listed with a cursor, for each copy of the client", async () => {
  const { id } = await baseSampler();
  const [first, second] = [
    await client.post("asample", body(id)),
    await client.post("asample", body(id, { prompt: prompt([]) })),
  ];
  const copy = await client.post("asample", { ...body(id), seq_id: 3_000_000_000 });
  for (const { request_id } of [first, second, copy]) await client.collect(request_id);
  const read = (prev_cursor: number, cloned_sampler_id = 0) =>
    client.post("retrieve_futures", {
      target: { type: "sampling_session", sampling_session_id: id, cloned_sampler_id },
      prev_cursor,
      timeout: 0,
    });
  const all = (await read(0)) as { completions: Json[]; cursor: number };
  expect(new Set(all.completions.map(({ state, request_id }) => `${state} ${request_id}`))).toEqual(
    new Set([`finished ${first.request_id}`, `failed ${second.request_id}`]),
  );
  expect(await read(all.cursor)).toEqual({ completions: [], cursor: all.cursor });
  expect((await read(0, 3)).completions).toMatchObject([{ state: "finished", request_id: copy.request_id }]);
  expect([
    (await client.post("join_sampling_session", { sampling_session_id: id })).client_counter,
    (await client.post("join_sampling_session", { sampling_session_id: id })).client_counter,
  ]).toEqual([1, 2]);
});

test("a full queue answers 429", async () => {
  await client.close();
  const engine = tabularEngine({ alphabet: "abc" });
  client = await testClient({ folder, engines: [{ names: ["tabular"], engine }], maxWaitingRows: 300 });
  const { id } = await baseSampler();
  const post = (num_samples: number) =>
    client.request("POST", "/api/v1/asample", body(id, { num_samples, sampling_params: { max_tokens: 5000 } }));
  // 256 sequences are sampled at a time, and 300 may wait.
  const statuses = [(await post(256)).status, (await post(300)).status, (await post(1)).status];
  expect(statuses).toEqual([200, 200, 429]);
});

/**
 * Records the answers of a real inference server to Hone's requests. dialect.test.ts replays them.
 *
 *   python scripts/proofs/upstream-contract/tiny.py make MODEL
 *   vllm serve MODEL --served-model-name policy --dtype float32 --max-model-len 1024 --port 8000 --enable-scale-out
 *   tsx scripts/proofs/upstream-contract/record.ts vllm http://127.0.0.1:8000 "vLLM 0.32.0" MODEL PYTHON
 *   tsx scripts/proofs/upstream-contract/record.ts vllm-generate http://127.0.0.1:8000 "vLLM 0.32.0" MODEL PYTHON
 *   tsx scripts/proofs/upstream-contract/record.ts sglang http://127.0.0.1:8001 "SGLang 0.5.23 (message types)" MODEL PYTHON
 *   npx biome format --write src/backends/servers/fixtures
 *
 * The second server is scripts/proofs/upstream-contract/sglang.py. PYTHON has torch and transformers: their log-probabilities of
 * the same tokens are recorded beside the server's.
 */
import { execFileSync } from "node:child_process";
import { writeFileSync } from "node:fs";
import { createServer } from "node:http";
import { fileURLToPath } from "node:url";
import type { SampleRequest } from "../../../src/backends/engine.ts";
import {
  type Recorded,
  type RecordedServer,
  type Recording,
  recordedServers,
} from "../../../src/backends/servers/recorded.fixture.ts";
import { serverSampler } from "../../../src/backends/servers/sampler.ts";
import { listen } from "../../../src/base/http.ts";
import { loadChat } from "../../../src/chat/chat.ts";

const [name, url, server, model, python] = process.argv.slice(2) as [RecordedServer, string, string, string, string];
const here = fileURLToPath(new URL(".", import.meta.url));
const { decode } = loadChat(model);

let last: Pick<Recorded, "path" | "body" | "status" | "answer"> | undefined;
const between = createServer(async (request, response) => {
  let text = "";
  for await (const chunk of request) text += chunk;
  if (request.method === "GET") {
    response.writeHead(recordedServers[name].generates ? 405 : 404).end();
    return;
  }
  const answer = await fetch(new URL(request.url!, url), {
    ...{ method: "POST", body: text, headers: { "content-type": "application/json" } },
  });
  last = { path: request.url!, body: JSON.parse(text), status: answer.status, answer: await answer.text() };
  response.writeHead(answer.status, { "content-type": answer.headers.get("content-type")! });
  response.end(last.answer);
});
const address = await listen(between);
const sampler = serverSampler({
  ...{
    kind: recordedServers[name].kind,
    url: address,
    model: "policy",
  },
});

const prompt = [1, 50, 60, 70];
const params = { maxTokens: 6, temperature: 1, topP: 1, topK: -1, minP: 0, stopIds: [2], stopStrings: [], seed: 5 };
type Asked = Omit<SampleRequest, "prompt"> & { prompt: number[] };

async function ask(name: string, more: Partial<Asked>, stream = false): Promise<Recorded> {
  const asked: Asked = { prompt, params, ...more };
  const request = { ...asked, prompt: Int32Array.from(asked.prompt) };
  let tokens: number[] = [];
  let stopReason = "";
  let problem: string | undefined;
  let promptLogprobs: number[] = [];
  try {
    for await (const sample of sampler.sample([request], stream ? { onToken: () => {} } : {})) {
      tokens = Array.from(sample.tokens);
      promptLogprobs = Array.from(sample.promptLogprobs ?? []).slice(1);
      stopReason = sample.stopReason;
    }
  } catch (error) {
    problem = (error as Error).message;
  }
  console.log(name, tokens, stopReason, problem ?? "");
  const { request_id: _, ...body } = last!.body;
  const given = problem
    ? {}
    : { tokens, stopReason, logprobs: [], ...(asked.promptLogprobs ? { promptLogprobs } : {}) };
  return { name, asked, stream, ...last!, body, ...given };
}

const whole = await ask("whole", {});
// A piece of text that the model writes anyway becomes the stop string.
const { tokens: long = [] } = await ask("longer, not recorded", { params: { ...params, maxTokens: 40 } });
const stop = long
  .slice(1)
  .map((token) => decode([token]))
  .find((text) => /^[!-~]$/.test(text));
if (stop === undefined) throw new Error("no token of the reply can be a stop string");
const stopping = { ...params, maxTokens: 40, stopStrings: [stop] };
const repeating = { ...params, temperature: 0, maxTokens: 40, ignoreEos: true };
const recorded = [
  whole,
  await ask("streamed", {}, true),
  await ask("alternatives", { topLogprobs: 2 }),
  await ask("alternatives, streamed", { topLogprobs: 2 }, true),
  await ask("stop string", { params: stopping }),
  await ask("stop token", { params: { ...params, stopIds: [2, whole.tokens![2]!] } }),
  ...(name === "sglang"
    ? []
    : [
        await ask("log-probabilities of the prompt", { promptLogprobs: true }),
        await ask("another seed", { params: { ...params, seed: 2 ** 47 - 1 } }),
        await ask("the two likeliest", { params: { ...params, topK: 2, maxTokens: 20 }, topLogprobs: 2 }),
        await ask("a tiny top_p is greedy", { params: { ...params, topP: 1e-6 } }),
        await ask("min_p of one is greedy", { params: { ...params, minP: 1 } }),
        await ask("greedy", { params: { ...params, temperature: 0 } }),
      ]),
  await ask("hot and cut", { params: { ...params, temperature: 2, topK: 5, topP: 0.9, minP: 0.01 } }),
  await ask("greedy, without the model's own penalty", { params: repeating }),
  // vLLM's route for tokens samples as many as fit instead.
  ...(name === "vllm-generate" ? [] : [await ask("refused", { params: { ...params, maxTokens: 5000 } })]),
];
const answered = recorded.filter(({ tokens }) => tokens !== undefined);
const sequences = answered.map(({ asked, tokens }) => [asked.prompt, tokens]);
// The prompt after its first token, too.
sequences.push([prompt.slice(0, 1), prompt.slice(1)]);
const scores = execFileSync(python, [`${here}tiny.py`, "score", model], { input: JSON.stringify(sequences) });
const all = JSON.parse(scores.toString()) as number[][];
for (const [index, one] of answered.entries()) {
  one.logprobs = all[index]!;
  if (one.promptLogprobs !== undefined) one.promptLogprobs = all.at(-1)!;
}
const recording: Recording = { server, recorded };
writeFileSync(
  new URL(`../../../src/backends/servers/fixtures/${name}.json`, import.meta.url),
  `${JSON.stringify(recording, null, 1)}\n`,
);
await sampler.close();
between.close();

/**
 * The tokens per second of samplers with the same prompts: of the local engine, of a running vLLM server through Hone, and of
 * that server called by a plain HTTP client. The rounds of the latter two alternate.
 *
 *   npm run bench -- sampler --url http://127.0.0.1:8000 --model ./my-model [--sequences 64] [--tokens 64] [--rounds 5]
 *   npm run bench -- sampler ... --sync lora    also the time until the server has new weights (`full`: of all weights)
 *
 * Prints medians, and what Hone adds to the plain client's time, in wall time and in time of the client's processor.
 * Without --url only the local engine is measured.
 */
import { rmSync } from "node:fs";
import { parseArgs } from "node:util";
import { Pool } from "undici";
import type { AdapterSpec, SampleRequest, Sampler } from "../../src/backends/engine.ts";
import { composeEngine } from "../../src/backends/engine-parts.ts";
import { openLocalEngine } from "../../src/backends/local/engine.ts";
import { openServers } from "../../src/backends/servers/group.ts";
import { servedPolicies } from "../../src/backends/servers/policies.ts";
import { serverSampler } from "../../src/backends/servers/sampler.ts";
import { vllmDialect } from "../../src/backends/servers/vllm.ts";
import { temporaryFolder } from "../../src/base/files.ts";
import { deriveSeed, uniforms } from "../../src/base/values.ts";
import { openTokenizer } from "../../src/chat/tokenizer.ts";
import { createSampleQueue } from "../../src/rollout/sample-queue.ts";

const { values: flags } = parseArgs({
  options: {
    url: { type: "string" },
    model: { type: "string", default: "smollm2-135m-instruct" },
    sequences: { type: "string", default: "64" },
    tokens: { type: "string", default: "64" },
    rounds: { type: "string", default: "5" },
    sync: { type: "string" },
    "without-own": { type: "boolean", default: false },
  },
});
const [sequences, tokens, rounds] = [flags.sequences, flags.tokens, flags.rounds].map(Number) as [
  number,
  number,
  number,
];
const promptLength = 64;
/** The server's key, if it requires one. */
const apiKey = process.env.VLLM_API_KEY;

const requestsOf = (round: number): SampleRequest[] =>
  Array.from({ length: sequences }, (_, index) => {
    const random = uniforms(deriveSeed("prompt", round, index));
    const params = { temperature: 1, topP: 1, topK: -1, minP: 0, stopIds: [], stopStrings: [], ignoreEos: true };
    return {
      prompt: Int32Array.from({ length: promptLength }, () => 3 + Math.floor(random() * 200)),
      params: { ...params, maxTokens: tokens, seed: deriveSeed("sample", round, index) % 2 ** 31 },
    };
  });

interface Measured {
  seconds: number;
  processor: number;
}

async function measure(sample: (requests: SampleRequest[]) => Promise<number>, round: number): Promise<Measured> {
  const requests = requestsOf(round);
  const begin = performance.now();
  const before = process.cpuUsage();
  const sampled = await sample(requests);
  const { user, system } = process.cpuUsage(before);
  if (sampled !== sequences * tokens) throw new Error(`${sampled} tokens instead of ${sequences * tokens}`);
  return { seconds: (performance.now() - begin) / 1000, processor: (user + system) / 1e6 };
}

/** As rollouts sample. */
async function throughQueue(sampler: Sampler, requests: SampleRequest[]): Promise<number> {
  const queue = createSampleQueue(sampler);
  const release = queue.hold();
  const replies = requests.map((request, index) =>
    queue.join([index, 0]).sample(request, 0, new AbortController().signal),
  );
  release();
  return (await Promise.all(replies)).reduce((sum, reply) => sum + reply.tokens.length, 0);
}

const median = (values: number[]) => values.toSorted((left, right) => left - right)[Math.floor(values.length / 2)]!;
const perSecond = (all: Measured[]) => (sequences * tokens) / median(all.map(({ seconds }) => seconds));
const percent = (ratio: number) => `${(100 * ratio).toFixed(1)}%`;

async function measureServer(url: string): Promise<void> {
  const group = openServers({ urls: [url], apiKey });
  const dialect = await vllmDialect(group.servers[0]!);
  const { data } = (await (await fetch(`${url}/v1/models`, { headers: group.servers[0]!.headers })).json()) as {
    data: [{ id: string }];
  };
  const model = data[0].id;
  const sampler = serverSampler({ url, model, ...(apiKey === undefined ? {} : { apiKey }) });
  const pool = new Pool(new URL(url).origin, { connections: 1024, headersTimeout: 0, bodyTimeout: 0 });

  const direct = async (requests: SampleRequest[]) => {
    const answers = requests.map(async (request, index) => {
      const body = JSON.stringify(dialect.write(request, model, false, `direct-${index}`));
      const { headers } = group.servers[0]!;
      const answer = await pool.request({ path: dialect.path, method: "POST", headers, body });
      const { choices } = (await answer.body.json()) as { choices: [{ token_ids: number[] }] };
      return choices[0].token_ids.length;
    });
    return (await Promise.all(answers)).reduce((sum, count) => sum + count, 0);
  };
  const hone = (requests: SampleRequest[]) => throughQueue(sampler, requests);

  await direct(requestsOf(-1));
  await hone(requestsOf(-2));
  const measured: Record<"direct" | "hone", Measured[]> = { direct: [], hone: [] };
  for (let round = 0; round < rounds; round++) {
    // The same prompts, but never a prefix that the server has cached.
    const order = [
      () => measure(direct, 2 * round).then((one) => measured.direct.push(one)),
      () => measure(hone, 2 * round + 1).then((one) => measured.hone.push(one)),
    ];
    for (const run of round % 2 === 0 ? order : order.reverse()) await run();
  }
  console.log(`route                      ${dialect.path}`);
  console.log(`server, plain client       ${perSecond(measured.direct).toFixed(1)} tokens/s`);
  console.log(`server, through Hone       ${perSecond(measured.hone).toFixed(1)} tokens/s`);
  const ratios = measured.hone.map(({ seconds }, round) => seconds / measured.direct[round]!.seconds - 1);
  console.log(`Hone adds (wall time)      ${percent(median(ratios))}; rounds: ${ratios.map(percent).join(" ")}`);
  const [own, plain] = [measured.hone, measured.direct].map((all) => median(all.map(({ processor }) => processor)));
  const wall = median(measured.direct.map(({ seconds }) => seconds));
  console.log(
    `client's processor time    plain ${plain!.toFixed(3)} s, Hone ${own!.toFixed(3)} s: ${percent((own! - plain!) / wall)} of the wall time`,
  );
  await sampler.close();
  await group.close();
  await pool.close();
}

async function measureSync(url: string, kind: string): Promise<void> {
  const trainer = await openLocalEngine({ model: flags.model });
  const folder = temporaryFolder("hone-bench-");
  const encode = (text: string) => openTokenizer(trainer.model.directory).encode(text);
  const engine = composeEngine({ trainer, samplers: servedPolicies(trainer, { urls: [url], apiKey, folder, encode }) });
  const targets = ["attn", "mlp"] as const;
  const adapter: AdapterSpec = kind === "full" ? { kind } : { kind: "lora", rank: 32, alpha: 32, targets, seed: 1 };
  try {
    const { learner, sampler } = await engine.createPolicy({ adapter });
    const seconds: number[] = [];
    for (let version = 0; version < 3; version++) {
      const begin = performance.now();
      await sampler.load(await learner.publish());
      seconds.push((performance.now() - begin) / 1000);
    }
    const { "rollout/sync_seconds": loading = Number.NaN } = await engine.stats();
    const whole = median(seconds).toFixed(2);
    console.log(`sync of ${kind.padEnd(18)} ${whole} s, of which the server and the probe ${loading.toFixed(2)} s`);
  } finally {
    await engine.close();
    rmSync(folder, { recursive: true, force: true });
  }
}

console.log(`${sequences} sequences of ${promptLength} + ${tokens} tokens at the same time, ${rounds} rounds`);
if (flags.url !== undefined) {
  await measureServer(flags.url);
  if (flags.sync !== undefined) await measureSync(flags.url, flags.sync);
}
if (!flags["without-own"]) {
  const engine = await openLocalEngine({ model: flags.model });
  const { sampler } = await engine.createPolicy({ adapter: { kind: "none" } });
  const own: Measured[] = [];
  for (let round = 0; round < Math.min(rounds, 3); round++) {
    own.push(await measure((requests) => throughQueue(sampler, requests), round));
  }
  console.log(`local engine               ${perSecond(own).toFixed(1)} tokens/s`);
  await engine.close();
}

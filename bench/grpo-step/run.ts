/**
 * One GRPO step of Hone beside one of TRL's GRPOTrainer: same model, prompts, batch, adapter and learning rate, one
 * after the other on an otherwise idle machine.
 *
 *   npm run bench -- grpo-step [--steps 4] [--peer-steps 3] [--skip-peer] [--prompts 16] [--samples 8] [--new-tokens 48]
 *
 * Prints seconds per step, split into sampling and training, peak memory, the ratio, and the share of the machine's
 * measured matrix-product peak that training reaches. The first step of each side warms up and is not counted.
 */
import { spawn } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { cpus, tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";
import { singleTurn } from "../../src/agents/workflows.ts";
import { policyLoss } from "../../src/algorithms/policy-loss.ts";
import { openLocalEngine } from "../../src/backends/local/engine.ts";
import { formatBytes } from "../../src/base/files.ts";
import { preparePackage, preparePython } from "../../src/base/python.ts";
import { mean, uniforms } from "../../src/base/values.ts";
import { loadChat } from "../../src/chat/chat.ts";
import { fromRows } from "../../src/data/dataset.ts";
import { firstInteger } from "../../src/rewards/index.ts";
import { train } from "../../src/trainer/train.ts";
import { offsetsOf, totalsOf } from "../../src/trajectories/batch.ts";

/** Weights that take part in a product for each token of SmolLM2-135M (30 layers, hidden 576), and for each trained one. */
const productWeights = {
  linear: 30 * (576 * (576 + 192 + 192) + 576 * 576 + 3 * 576 * 1536),
  head: 576 * 49152,
};

/** TRL's fast setting and its lean one; bfloat16 in both, which is its better precision here. */
const peerSettings = [
  { name: "TRL bfloat16, micro-batch 32", args: ["--micro-batch", "32"] },
  { name: "TRL bfloat16, micro-batch 8, checkpointing", args: ["--micro-batch", "8", "--checkpointing"] },
];

interface Side {
  name: string;
  seconds: number;
  sampling: number;
  training: number;
  peakBytes: number;
  newTokensPerStep?: number;
}

const { values: flags } = parseArgs({
  options: {
    steps: { type: "string", default: "4" },
    "peer-steps": { type: "string", default: "3" },
    "skip-peer": { type: "boolean", default: false },
    prompts: { type: "string", default: "16" },
    samples: { type: "string", default: "8" },
    "new-tokens": { type: "string", default: "48" },
  },
});
const batch = {
  prompts: Number(flags.prompts),
  samples: Number(flags.samples),
  newTokens: Number(flags["new-tokens"]),
};
const rows = makeRows(Math.max(Number(flags.steps), Number(flags["peer-steps"])) * batch.prompts);
const work = mkdtempSync(join(tmpdir(), "hone-bench-"));
try {
  const hone = await runHone(Number(flags.steps));
  print(hone.side);
  const losses = lossSeconds(batch.prompts * batch.samples, batch.newTokens);
  console.log(
    `losses take ${(1000 * losses).toFixed(2)} ms, ${((100 * losses) / hone.side.seconds).toFixed(4)}% of a step`,
  );
  const peak = await gemmPeak();
  console.log(
    `training reaches ${((100 * hone.trainingFlops) / hone.side.training / peak).toFixed(0)}% of the measured bfloat16 ` +
      `matrix-product peak, ${(peak / 1e9).toFixed(0)} GFLOPS on ${cpus().length} cores`,
  );
  if (!flags["skip-peer"]) {
    const sides: Side[] = [];
    for (const setting of peerSettings) {
      const side = await runPeer(hone.modelDirectory, Number(flags["peer-steps"]), setting);
      print(side);
      sides.push(side);
    }
    const fastest = Math.min(...sides.map(({ seconds }) => seconds));
    const leanest = Math.min(...sides.map(({ peakBytes }) => peakBytes));
    console.log(`Hone is ${(fastest / hone.side.seconds).toFixed(2)}x as fast as TRL at its fastest`);
    console.log(`Hone's peak memory is ${(hone.side.peakBytes / leanest).toFixed(2)}x that of TRL at its leanest`);
  }
} finally {
  rmSync(work, { recursive: true, force: true });
}

function makeRows(count: number): { prompt: string; answer: number }[] {
  const random = uniforms(1);
  return Array.from({ length: count }, () => {
    const [left, right] = [10 + Math.floor(random() * 90), 10 + Math.floor(random() * 90)];
    const prompt = `What is the larger of ${left} and ${right}? Give only the number.`;
    return { prompt, answer: Math.max(left, right) };
  });
}

/** Median time of PPO's loss with a KL term and its gradient, over as many tokens as a step has. */
function lossSeconds(sequences: number, tokensEach: number): number {
  const offsets = offsetsOf(Array.from({ length: sequences }, () => tokensEach));
  const random = uniforms(2);
  const draw = () => Float32Array.from({ length: sequences * tokensEach }, () => -2 * random());
  const logprobs = draw();
  const loss = policyLoss(
    {
      sequences: Array.from({ length: sequences }, () => ({ tokens: new Int32Array(0), trained: new Uint8Array(0) })),
      offsets,
      advantages: draw(),
      samplerLogprobs: logprobs,
      oldLogprobs: draw(),
      referenceLogprobs: draw(),
      groups: new Int32Array(sequences),
      roles: Array.from({ length: sequences }, () => "agent"),
      totals: totalsOf(offsets),
    },
    { lossFn: "ppo", epsClip: 0.2, epsClipHigh: null, aggMode: null, kl: { weight: 0.1, estimator: "k3" } },
  );
  const all = Int32Array.from({ length: sequences }, (_, index) => index);
  const times = Array.from({ length: 51 }, () => {
    const begin = performance.now();
    loss.evaluate({ offsets, logprobs }, all);
    return (performance.now() - begin) / 1000;
  });
  return times.sort((a, b) => a - b)[25] ?? 0;
}

/** The product itself, as `hone train` runs it. */
async function runHone(steps: number) {
  const engine = await openLocalEngine({ model: "smollm2-135m-instruct", logFile: join(work, "worker.log") });
  try {
    const { history } = await train(
      {
        train: fromRows("bench", rows),
        workflow: singleTurn<(typeof rows)[number]>({
          prompt: (row) => row.prompt,
          reward: (row, reply) => firstInteger(reply.text, row.answer),
        }),
        config: {
          rllm: {
            rollout: { n: batch.samples },
            trainer: { total_batches: steps, save_freq: 0, logger: [], run_dir: join(work, "run") },
          },
          training: { learning_rate: 1e-4 },
          data: { train_batch_size: batch.prompts, max_response_length: batch.newTokens, shuffle: false },
        },
      },
      { engine: { engine, chat: loadChat(engine.model.directory) } },
    );
    const counted = history.slice(1).map(({ metrics }) => metrics);
    const average = (name: string) => mean(counted.map((metrics) => metrics[name]!));
    const first = history[0]!.metrics;
    const last = counted.at(-1)!;
    const perStep = (name: string) => (last[name]! - first[name]!) / counted.length;
    const side: Side = {
      name: `Hone ${engine.model.dtype}`,
      seconds: average("time/step"),
      sampling: average("time/rollout"),
      training: average("time/update"),
      // Two processes: the worker's peak and this one's, although they need not coincide.
      peakBytes: last["memory/peak_rss_bytes"]! + process.resourceUsage().maxRSS * 1024,
      newTokensPerStep: average("perf/sampled_tokens"),
    };
    const { linear, head } = productWeights;
    const trainingFlops =
      4 *
      (perStep("engine/train/tokens_computed") * linear +
        average("perf/sampled_tokens") * average("batch/agent/fractions/effective") * head);
    return { side, trainingFlops, modelDirectory: engine.model.directory };
  } finally {
    await engine.close();
  }
}

async function runPeer(
  model: string,
  steps: number,
  { name, args: setting }: (typeof peerSettings)[number],
): Promise<Side> {
  const { python } = await preparePython();
  const directory = await preparePackage("trl");
  const prompts = join(work, "prompts.jsonl");
  writeFileSync(prompts, rows.map((row) => `${JSON.stringify(row)}\n`).join(""));
  const script = fileURLToPath(new URL("peer_trl.py", import.meta.url));
  const args = [script, "--model", model, "--prompts", prompts, "--steps", `${steps}`, ...setting];
  args.push("--prompts-per-step", flags.prompts, "--samples", flags.samples, "--new-tokens", flags["new-tokens"]);
  const lines = await jsonLines(python, args, { PYTHONPATH: directory, HF_HUB_OFFLINE: "1" });
  const timed = lines.filter((line) => "seconds" in line).slice(1) as { seconds: number; sampling: number }[];
  const seconds = mean(timed.map((line) => line.seconds));
  const sampling = mean(timed.map((line) => line.sampling));
  const { peak_bytes } = lines.at(-1) as { peak_bytes: number };
  return {
    name,
    seconds,
    sampling,
    training: seconds - sampling,
    peakBytes: peak_bytes,
  };
}

/** FLOPS of the best of a few large products. */
async function gemmPeak(): Promise<number> {
  const { python } = await preparePython();
  const script = fileURLToPath(new URL("gemm_peak.py", import.meta.url));
  const [line] = await jsonLines(python, [script], {});
  return (line as { flops: number }).flops;
}

async function jsonLines(program: string, args: string[], env: Record<string, string>): Promise<object[]> {
  const child = spawn(program, args, { stdio: ["ignore", "pipe", "inherit"], env: { ...process.env, ...env } });
  const lines: object[] = [];
  for await (const line of createInterface({ input: child.stdout })) {
    if (line.startsWith('{"')) {
      lines.push(JSON.parse(line) as object);
      if ("step" in lines.at(-1)!) console.log(`  ${line}`);
    }
  }
  if (lines.length === 0) throw new Error(`${args[0]} printed nothing; its messages are above`);
  return lines;
}

function print({ name, seconds, sampling, training, peakBytes, newTokensPerStep }: Side): void {
  const tokens = newTokensPerStep === undefined ? "" : `, ${Math.round(newTokensPerStep)} new tokens a step`;
  console.log(
    `${name}: ${seconds.toFixed(1)} s a step (sampling ${sampling.toFixed(1)}, training ${training.toFixed(1)}), ` +
      `peak memory ${formatBytes(peakBytes)}${tokens}`,
  );
}

/**
 * Each loss and its gradient over a million tokens, beside the same in torch eager, in turns on one machine.
 *
 *   npm run bench -- algorithms [--sequences 2048] [--repeats 9]
 *
 * The batch has sequences of 256 to 768 tokens whose ratios are as far from 1 as after a few optimizer steps. Torch gets
 * it as trainers give it: padded to the longest, with a mask. Hone has one thread, torch as many as it takes. Prints
 * milliseconds (medians, after as many evaluations that are not counted), the ratio, and how far the two gradients are
 * apart at most, as a share of the largest entry.
 */
import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { cpus, tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";
import { type PolicyLossOptions, policyLoss } from "../../src/algorithms/policy-loss.ts";
import type { Loss } from "../../src/algorithms/types.ts";
import { valueLoss } from "../../src/algorithms/value-loss.ts";
import { runSetup } from "../../src/backends/local/setup.ts";
import { uniforms } from "../../src/random.ts";
import { offsetsOf, totalsOf } from "../../src/trajectories/batch.ts";
import type { TokenOutputs, TrainingBatch } from "../../src/trajectories/types.ts";

const { values: flags } = parseArgs({
  options: {
    sequences: { type: "string", default: "2048" },
    repeats: { type: "string", default: "9" },
  },
});
const [sequences, repeats] = [Number(flags.sequences), Number(flags.repeats)];

const next = uniforms(1);
const lengths = Int32Array.from({ length: sequences }, () => 256 + Math.floor(513 * next()));
const offsets = offsetsOf(Array.from(lengths));
const tokens = offsets.at(-1)!;
const draw = (make: () => number) => Float32Array.from({ length: tokens }, make);
/** Bell-shaped about the values. */
const near = (values: Float32Array, deviation: number) =>
  values.map((value) => value + deviation * 2 * (next() + next() + next() - 1.5));
const lp = draw(() => -4 * next());
const val = draw(() => 2 * next() - 1);
const advantages = draw(() => 0);
lengths.forEach((_, row) => {
  advantages.fill(4 * next() - 2, offsets[row]!, offsets[row + 1]!);
});
const arrays = {
  ...{ lp, val, adv: advantages, ent: draw(() => 3 * next()) },
  ...{ old: near(lp, 0.1), ref: near(lp, 0.5), vold: near(val, 0.2), ret: near(val, 1) },
};

const batch: TrainingBatch = {
  sequences: Array.from(lengths, () => ({ tokens: new Int32Array(0), trained: new Uint8Array(0) })),
  offsets,
  advantages,
  samplerLogprobs: arrays.old,
  oldLogprobs: arrays.old,
  referenceLogprobs: arrays.ref,
  returns: arrays.ret,
  oldValues: arrays.vold,
  groups: new Int32Array(sequences),
  roles: Array.from(lengths, () => "solver"),
  totals: totalsOf(offsets),
};
const outputs: TokenOutputs = { offsets, logprobs: lp, entropy: arrays.ent, values: val };
const all = Int32Array.from(lengths.keys());

const plain: PolicyLossOptions = {
  ...{ lossFn: "ppo", epsClip: 0.2, epsClipHigh: null, aggMode: null, klBeta: 0, klEstimator: "k3" },
  constants: { cpgdDrift: 0.1 },
};
const of = (options: Partial<PolicyLossOptions>) => () => policyLoss(batch, { ...plain, ...options });
const losses: Record<string, () => Loss> = {
  importance_sampling: of({ lossFn: "importance_sampling" }),
  ppo: of({}),
  ppo_dual_clip: of({ dualClip: 3 }),
  ppo_kl_entropy: of({ klBeta: 0.1, entropyCoeff: 0.01 }),
  cispo: of({ lossFn: "cispo" }),
  dro: of({ lossFn: "dro" }),
  gpg: of({ lossFn: "gpg" }),
  gspo: of({ lossFn: "gspo" }),
  gmpo: of({ lossFn: "gmpo" }),
  cpgd: of({ lossFn: "cpgd" }),
  sapo: of({ lossFn: "sapo" }),
  clip_cov: of({ lossFn: "clip_cov" }),
  kl_cov: of({ lossFn: "kl_cov" }),
  value: () => valueLoss(batch, { aggMode: "token-mean", clip: 0.2 }),
};

const folder = mkdtempSync(join(tmpdir(), "hone-bench-"));
try {
  for (const [name, values] of Object.entries(arrays)) writeFileSync(join(folder, `${name}.f32`), values);
  writeFileSync(join(folder, "lengths.i32"), lengths);
  const { python = "" } = await runSetup("python");
  const script = fileURLToPath(new URL("peer_torch.py", import.meta.url));
  const peer = spawn(python, [script, folder, `${repeats}`], {
    stdio: ["pipe", "pipe", "inherit"],
  });
  const answers = createInterface(peer.stdout)[Symbol.asyncIterator]();
  const lines: string[] = [];
  let machine = "";
  for (const [name, make] of Object.entries(losses)) {
    peer.stdin.write(`${name}\n`);
    const { value: answer, done } = await answers.next();
    if (done) throw new Error("torch ended early");
    const theirs = JSON.parse(answer) as { loss: number; seconds: number; threads: number; torch: string };
    const ours = measure(make);
    const ratio = (theirs.seconds / ours.seconds).toFixed(2);
    const cells = [ours.seconds, theirs.seconds].map((seconds) => (seconds * 1e3).toFixed(1).padStart(9));
    // Which tokens clip_cov draws is chance.
    const apart = name === "clip_cov" ? "" : `${distance(ours.gradient, theirs.loss, ours.loss).toExponential(1)}`;
    lines.push(`${name.padEnd(20)}${cells.join("")}${ratio.padStart(8)}  ${apart}`);
    machine = `torch ${theirs.torch} on ${theirs.threads} threads`;
  }
  peer.stdin.end();
  await once(peer, "close");
  console.log(`${tokens} tokens in ${sequences} sequences; Hone on 1 thread, ${machine}; ${cpus()[0]?.model.trim()}`);
  console.log(`${"loss and gradient".padEnd(20)}  Hone ms torch ms   ratio  gradients apart`);
  for (const line of lines) console.log(line);
} finally {
  rmSync(folder, { recursive: true, force: true });
}

function measure(make: () => Loss) {
  const times: number[] = [];
  let value = make().evaluate(outputs, all);
  for (let repeat = 0; repeat < 2 * repeats; repeat++) {
    const begin = performance.now();
    value = make().evaluate(outputs, all);
    times.push((performance.now() - begin) / 1e3);
  }
  const seconds = times.slice(repeats).sort((a, b) => a - b)[Math.floor(repeats / 2)]!;
  return { seconds, loss: value.loss, gradient: value.gradient.values ?? value.gradient.logprobs };
}

/** The largest difference of the gradients, as a share of the largest entry; or of the losses, where that is more. */
function distance(ours: Float32Array, theirLoss: number, ourLoss: number): number {
  const file = readFileSync(join(folder, "gradient.f32"));
  const theirs = new Float32Array(file.buffer.slice(file.byteOffset, file.byteOffset + file.byteLength));
  let apart = 0;
  let largest = 0;
  for (let token = 0; token < ours.length; token++) {
    apart = Math.max(apart, Math.abs(ours[token]! - theirs[token]!));
    largest = Math.max(largest, Math.abs(theirs[token]!));
  }
  return Math.max(apart / largest, Math.abs(ourLoss - theirLoss) / Math.abs(theirLoss));
}

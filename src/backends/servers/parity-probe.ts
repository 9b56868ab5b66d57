/**
 * Compares a server's log-probabilities with the learner's after each update of the server's weights. A server can
 * acknowledge an update without applying it; then the run would train on samples of another policy.
 */
import { RunError } from "../../errors.ts";
import { mean } from "../../statistics.ts";
import type { Sequence } from "../../trajectories/types.ts";
import type { Learner, Sample, SampleRequest, Sampler } from "../engine.ts";

/** Sampled tokens of a probe. */
const length = 24;
/** Tokens of a prompt that a probe begins with. */
const mostPrompt = 256;

/**
 * Limits of mean absolute differences in nats. `parity`: between server and trainer. `change`: how far the weights must
 * have moved before the server's change is compared with the trainer's; both are rounded, so less is noise.
 */
const limits = {
  float32: { parity: 0.01, change: 0.002 },
  /** Where the server or the trainer computes in bfloat16 or float16. */
  half: { parity: 0.1, change: 0.1 },
};
/** Unchanged weights differ by less if server and trainer compute in float32. */
const mostOfFloat32 = 1e-3;

/** A sequence with its log-probabilities at some version. */
interface Anchor {
  sequence: Sequence;
  server: Float32Array;
  learner: Float32Array;
}

export interface ParityProbe {
  /** Later probes begin with this prompt, as rollouts do. */
  prompt: Int32Array;
  /**
   * @param sampler of the new version
   * @returns the mean absolute difference of the log-probabilities of a freshly sampled sequence
   * @throws RunError if server and trainer have different weights
   */
  check(sampler: Sampler, version: number): Promise<number>;
}

/**
 * The first check must be of weights that change nothing: it compares the models themselves, and measures how precisely
 * the server computes.
 */
export function parityProbe(learner: Pick<Learner, "forward">, url: string, prompt: Int32Array): ParityProbe {
  let anchor: Anchor | undefined;
  let precision: keyof typeof limits | undefined;

  const probe: ParityProbe = {
    prompt,
    async check(sampler, version) {
      const start = probe.prompt.subarray(0, mostPrompt);
      const fresh = await one(sampler, {
        prompt: start,
        // Not 1, so that the probe detects a server that reports tempered log-probabilities.
        params: { ...plain, maxTokens: length, temperature: 0.7, seed: version },
      });
      const sequence = sequenceOf(start, fresh.tokens);
      const sequences = anchor ? [sequence, anchor.sequence] : [sequence];
      const { logprobs, offsets } = await learner.forward(sequences, { entropy: false });
      const own = logprobs.slice(0, offsets[1]);
      const difference = distance(fresh.logprobs, own);
      precision ??= difference <= mostOfFloat32 ? "float32" : "half";
      const { parity, change } = limits[precision];
      if (!(difference <= parity)) throw mismatch(url, version, difference, parity, anchor === undefined);
      if (anchor) {
        const server = await score(sampler, anchor.sequence);
        const moved = minus(logprobs.slice(offsets[1]), anchor.learner);
        const followed = minus(server, anchor.server);
        const size = mean(moved.map(Math.abs));
        // Too small a change is measured together with the next ones.
        if (size < change) return difference;
        if (distance(followed, moved) > size / 2) throw stale(url, version, followed, size);
      }
      anchor = { sequence, server: await score(sampler, sequence), learner: own };
      return difference;
    },
  };
  return probe;
}

const plain = { temperature: 1, topP: 1, topK: -1, minP: 0, stopIds: [], stopStrings: [], ignoreEos: true, seed: 0 };

async function one(sampler: Sampler, request: SampleRequest): Promise<Sample> {
  for await (const sample of sampler.sample([request])) return sample;
  throw new RunError("the inference server did not answer the probe");
}

/** The server's log-probabilities of the trained tokens, which are the last ones. */
async function score(sampler: Sampler, { tokens, trained }: Sequence): Promise<Float32Array> {
  const { promptLogprobs } = await one(sampler, {
    prompt: tokens,
    params: { ...plain, maxTokens: 1 },
    promptLogprobs: true,
  });
  if (promptLogprobs === undefined)
    throw new RunError("the inference server does not return log-probabilities of prompts");
  return promptLogprobs.slice(trained.indexOf(1) + 1);
}

function sequenceOf(prompt: Int32Array, reply: Int32Array): Sequence {
  const tokens = Int32Array.of(...prompt, ...reply);
  const trained = new Uint8Array(tokens.length - 1).fill(1, prompt.length - 1);
  return { tokens, trained };
}

const minus = (left: Float32Array, right: Float32Array) =>
  left.map((value, index) => value - (right[index] ?? Number.NaN));
const distance = (left: Float32Array, right: Float32Array) => mean(minus(left, right).map(Math.abs));

function mismatch(url: string, version: number, difference: number, limit: number, isFirst: boolean): RunError {
  const text = `the log-probabilities of the inference server at ${url} differ from the trainer's by ${difference.toFixed(4)} on average (version ${version}, at most ${limit})`;
  return new RunError(isFirst ? `${text}, before any training` : text, {
    code: "sampler_mismatch",
    hint: isFirst
      ? "serve the same model, without quantization, and with --logprobs-mode raw_logprobs"
      : "the server samples with other weights than those it was sent: restart it, then continue the run with --resume",
  });
}

function stale(url: string, version: number, followed: Float32Array, moved: number): RunError {
  const change = mean(followed.map(Math.abs)).toFixed(4);
  return new RunError(
    `the inference server at ${url} acknowledged version ${version} of the weights, but does not sample with it: its log-probabilities of a fixed sequence changed by ${change} on average, the trainer's by ${moved.toFixed(4)}`,
    { code: "sampler_mismatch", hint: "restart the server, then continue the run with --resume" },
  );
}

/**
 * Checks that a server samples from the learner's weights: its log-probabilities must change as the learner's did.
 *
 * A server can acknowledge an update without applying it; then the run would train on samples of another policy. Two measures:
 * - The difference over 24 sampled tokens finds wrong weights, but not a small update that was not applied.
 * - The change of an older sequence on both sides (`changeEvidence`): the server's must be closer to the learner's than to zero. The probe
 *   decides at six standard deviations; until then it measures several updates together. A server with its old weights usually shows
 *   no change at all.
 *
 * The limits were measured with SmolLM2-135M, vLLM 0.32 in bfloat16 on a CPU and the trainer in float32. Equal weights differ by 0.028
 * (median of 36 probes; at most 0.044), a tiny model in float32 by 1e-6. One LoRA step at a learning rate of 1e-6 changed the trainer's
 * log-probabilities by 8e-5 to 1.5e-4, and the server's by 0.05 to 0.08 by rounding with the new adapter, by nothing with the old one.
 *
 * - A missed update is sent again, once (`rollout/sync_repeated`), an adapter under another name. Then the run stops.
 * - With adapters no other request runs meanwhile: vLLM 0.32 on a CPU crashes if it scores a prompt with an adapter beside others.
 * - It samples at temperature 0.7 where log-probabilities should be raw, so that it fails for a server that reports processed ones.
 * - Checksums (`/weight_checker`) are not used: on a CPU they leave out packed layers, and hashing takes longer than the update.
 * - `hone doctor rllm/backend=verl` failed once for an unknown reason (a difference of 0.049, as without the update; equal weights: 2e-6). It
 *   did not happen again in 230 updates with stopped or delayed processes and 78 whole doctors.
 */
import { RunError } from "../../base/errors.ts";
import { mean } from "../../base/values.ts";
import type { Sequence } from "../../trajectories/types.ts";
import type { Learner, Sample, SampleRequest, Sampler } from "../engine.ts";
import { plainParams } from "../engine-parts.ts";
import type { ServerGroup } from "./group.ts";
import { type ServedModelOptions, sampleFrom } from "./sampler.ts";

// Whether a server's log-probabilities changed as the learner's did.

/**
 * Two hypotheses: the server's change is the learner's plus noise, or it is noise alone. Both have the same likelihood
 * where the server's change reaches half of the learner's.
 *
 * @param least root mean square below which a change of the learner shows nothing
 * @returns the distance from there in standard deviations, positive if the server changed too; 0 if it shows nothing
 */
export function changeEvidence(learner: Float32Array, server: Float32Array, least: number): number {
  const size = norm(learner);
  if (!(rootMeanSquare(learner) > least)) return 0;
  const projected = learner.reduce((sum, value, index) => sum + value * server[index]!, 0) / size;
  const noise = Math.min(rootMeanSquare(server), rootMeanSquare(minus(server, learner)));
  return (projected - size / 2) / noise;
}

const norm = (values: Float32Array) => Math.hypot(...values);

const rootMeanSquare = (values: Float32Array) => norm(values) / Math.sqrt(values.length);

const minus = (left: Float32Array, right: Float32Array) =>
  left.map((value, index) => value - (right[index] ?? Number.NaN));

/** The mean absolute difference. */
const distance = (left: Float32Array, right: Float32Array) => mean(minus(left, right).map(Math.abs));

// The probe of each update.

/** Sampled tokens of a probe. */
const length = 24;
/** Tokens of a prompt that a probe begins with. */
const maxPromptTokens = 256;

/**
 * In nats. `parity`: how far server and trainer may differ on average. `change`: changes that are smaller than this (root
 * mean square) are not compared, because rounding can hide them from the server.
 */
const limits = {
  float32: { parity: 0.01, change: 1e-5 },
  /** Where the server or the trainer computes in bfloat16 or float16. */
  half: { parity: 0.1, change: 5e-5 },
};
/** Unchanged weights differ by less if server and trainer compute in float32. */
const maxOfFloat32 = 1e-3;
/** Standard deviations. */
const conclusive = 6;

/** A sequence with its log-probabilities at some version, of all tokens except the first. */
interface Anchor {
  sequence: Sequence;
  server: Float32Array;
  learner: Float32Array;
}

export type ProbePrompt = Pick<SampleRequest, "prompt" | "media">;

export interface ParityProbe {
  /** Later probes begin with this prompt, as rollouts do. */
  prompt: ProbePrompt;
  /** For a server that has the weights of an earlier process: the next `check` fails if it still has them. */
  remember(sampler: Sampler): Promise<void>;
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
export function parityProbe(learner: Pick<Learner, "forward">, url: string, prompt: ProbePrompt): ParityProbe {
  let anchor: Anchor | undefined;
  /** What the server computed with the weights of an earlier process. */
  let earlier: Omit<Anchor, "learner"> | undefined;
  let precision: keyof typeof limits | undefined;

  // A separate request, so that equal weights give equal numbers regardless of other requests.
  const ownLogprobs = async (sequence: Sequence) =>
    (await learner.forward([sequence], { entropy: false })).logprobs.slice();

  /** Without this check, other weights would count as an imprecise server, which would hide later faults too. */
  async function requireOthers(sampler: Sampler, version: number): Promise<void> {
    if (earlier === undefined) return;
    const { sequence, server } = earlier;
    const now = await score(sampler, sequence);
    if (now.every((value, index) => Object.is(value, server[index]))) {
      const apart = rootMeanSquare(known(minus(now, await ownLogprobs(sequence)), now));
      if (apart > limits.half.change) throw unchanged(url, version);
    }
    earlier = undefined;
  }

  /** Tells an update that was not applied or only in part from one that only sampling computes differently. */
  async function explain(
    difference: string,
    sampler: Sampler,
    { sequence, ...old }: Anchor,
    fresh: Omit<Anchor, "server">,
  ): Promise<RunError> {
    const prompt = await score(sampler, fresh.sequence);
    const scored = known(minus(prompt, fresh.learner), prompt);
    const [server, learner] = [await score(sampler, sequence), await ownLogprobs(sequence)];
    const followed = known(minus(server, old.server), server);
    const moved = known(minus(learner, old.learner), server);
    const text = `${difference}; scored as a prompt, the same tokens differ by ${size(scored)}; on a fixed sequence, the server's log-probabilities changed by ${size(followed)}, the trainer's by ${size(moved)}`;
    if (rootMeanSquare(moved) < rootMeanSquare(followed) / 2) return staleTrainer(text);
    return new MissedUpdate(text);
  }

  const probe: ParityProbe = {
    prompt,
    async remember(sampler) {
      const sequence = sequenceOf(beginning(probe.prompt), new Int32Array());
      earlier = { sequence, server: await score(sampler, sequence) };
    },
    async check(sampler, version) {
      await requireOthers(sampler, version);
      const start = beginning(probe.prompt);
      const fresh = await one(sampler, {
        ...start,
        // Not 1, so that the probe detects a server that reports other log-probabilities than it should.
        params: { ...plain, maxTokens: length, temperature: sampler.logprobs === "raw" ? 0.7 : 1, seed: version },
      });
      const sequence = sequenceOf(start, fresh.tokens);
      const learner = await ownLogprobs(sequence);
      const difference = distance(fresh.logprobs, learner.slice(start.prompt.length - 1));
      precision ??= difference <= maxOfFloat32 ? "float32" : "half";
      // Servers may resize images with torchvision, and the trainer with Pillow.
      const { parity, change } = limits[start.media ? "half" : precision];
      if (!(difference <= parity)) {
        const text = describeDifference(url, version, difference, parity);
        throw anchor ? await explain(text, sampler, anchor, { sequence, learner }) : otherModel(text);
      }
      if (anchor) {
        const { server } = anchor;
        const moved = known(minus(await ownLogprobs(anchor.sequence), anchor.learner), server);
        const followed = known(minus(await score(sampler, anchor.sequence), server), server);
        // Rounding moves each side on its own, about as far as they are apart.
        const rounding = rootMeanSquare(known(minus(server, anchor.learner), server));
        const evidence = changeEvidence(moved, followed, Math.max(change, 3 * rounding));
        if (evidence < -conclusive) throw stale(url, version, followed, moved);
        // Too small a change is measured together with the next ones.
        if (evidence < conclusive) return difference;
      }
      anchor = { sequence, server: await score(sampler, sequence), learner };
      return difference;
    },
  };
  return probe;
}

export interface ServerProbes {
  /** Later probes begin with this prompt, as rollouts do. */
  prompt: ProbePrompt;
  /** See `ParityProbe.remember`. */
  remember(served: ServedModelOptions): Promise<void>;
  /**
   * @param sendAgain called once if a server does not sample with the weights; returns what to check then
   * @returns metrics: the largest difference between a server and the learner, and whether the weights were sent again
   * @throws RunError if a server and the trainer have different weights
   */
  check(
    served: ServedModelOptions,
    version: number,
    sendAgain: () => Promise<ServedModelOptions>,
  ): Promise<Record<string, number>>;
}

/**
 * Probes each server by itself, because each can fail to apply an update.
 *
 * @param onNote called with a line when weights are sent again
 */
export function probeServers(
  group: ServerGroup,
  learner: Pick<Learner, "forward">,
  prompt: ProbePrompt,
  onNote: (text: string) => void = () => {},
): ServerProbes {
  const probes = new Map<unknown, ParityProbe>(
    group.servers.map((server) => [server, parityProbe(learner, server.url, prompt)]),
  );
  const each = <T>(served: ServedModelOptions, use: (probe: ParityProbe, sampler: Sampler) => Promise<T>) =>
    group.each((server) => {
      const probe = probes.get(server)!;
      probe.prompt = all.prompt;
      return use(probe, sampleFrom({ servers: [server], run: (_, ask) => ask(server) }, served));
    });
  const all: ServerProbes = {
    prompt,
    async remember(served) {
      await each(served, (probe, sampler) => probe.remember(sampler));
    },
    async check(served, version, sendAgain) {
      const largest = async (model: ServedModelOptions) =>
        Math.max(...(await each(model, (probe, sampler) => probe.check(sampler, version))));
      try {
        return { "rollout/sync_probe_difference": await largest(served), "rollout/sync_repeated": 0 };
      } catch (error) {
        if (!(error instanceof MissedUpdate)) throw error;
        onNote(`sending version ${version} of the weights again, because ${error.message}`);
        return { "rollout/sync_probe_difference": await largest(await sendAgain()), "rollout/sync_repeated": 1 };
      }
    },
  };
  return all;
}

const plain = { ...plainParams, ignoreEos: true };

async function one(sampler: Sampler, request: SampleRequest): Promise<Sample> {
  for await (const sample of sampler.sample([request])) return sample;
  throw new RunError("the inference server did not answer the probe");
}

/** The server's log-probabilities of all tokens except the first. */
async function score(sampler: Sampler, { tokens, media }: Sequence): Promise<Float32Array> {
  const { promptLogprobs } = await one(sampler, {
    prompt: tokens,
    ...(media ? { media } : {}),
    params: { ...plain, maxTokens: 1 },
    promptLogprobs: true,
  });
  if (promptLogprobs === undefined)
    throw new RunError("the inference server does not return log-probabilities of prompts");
  return promptLogprobs.slice(1);
}

/** Without the tokens whose log-probabilities the server does not know, such as those of images in SGLang. */
const known = (values: Float32Array, server: Float32Array) => values.filter((_, index) => !Number.isNaN(server[index]));

/** At most `maxPromptTokens` tokens, or as many as end an image that begins within them. */
function beginning({ prompt, media = [] }: ProbePrompt): ProbePrompt {
  const inside = media.filter(({ at }) => at < maxPromptTokens);
  const end = Math.max(maxPromptTokens, ...inside.map(({ at, length }) => at + length));
  return { prompt: prompt.subarray(0, end), ...(inside.length > 0 ? { media: inside } : {}) };
}

function sequenceOf({ prompt, ...media }: ProbePrompt, reply: Int32Array): Sequence {
  const tokens = Int32Array.of(...prompt, ...reply);
  return { tokens, trained: new Uint8Array(tokens.length - 1).fill(1), ...media };
}

const size = (change: Float32Array) => mean(change.map(Math.abs)).toPrecision(2);

const describeDifference = (url: string, version: number, difference: number, limit: number) =>
  `the log-probabilities of the inference server at ${url} differ from the trainer's by ${difference.toFixed(4)} on average (version ${version}, at most ${limit})`;

const code = "sampler_mismatch";

/** The server does not sample with the weights that it was sent last. */
class MissedUpdate extends RunError {
  override name = "MissedUpdate";
  constructor(message: string) {
    super(message, { code, hint: "restart the server, then continue the run with --resume" });
  }
}

const otherModel = (difference: string) =>
  new RunError(`${difference}, before any training`, {
    code,
    hint: "serve the same model, without quantization, and with --logprobs-mode raw_logprobs",
  });

const staleTrainer = (difference: string) =>
  new RunError(`the trainer does not compute with its own last update: ${difference}`, {
    code,
    hint: "continue the run with --resume; if this happens again, please report it",
  });

const unchanged = (url: string, version: number) =>
  new MissedUpdate(
    `the inference server at ${url} acknowledged version ${version} of the weights, but still samples with those of an earlier run`,
  );

const stale = (url: string, version: number, followed: Float32Array, moved: Float32Array) =>
  new MissedUpdate(
    `the inference server at ${url} acknowledged version ${version} of the weights, but does not sample with it: its log-probabilities of a fixed sequence changed by ${size(followed)} on average, the trainer's by ${size(moved)}`,
  );

/**
 * Teachers of an engine: learners that are not trained, samplers that return log-probabilities of prompts, and what
 * the configuration says of them.
 */
import { type DivergenceDefinition, type DivergenceName, divergences } from "../algorithms/distillation.ts";
import type { KlEstimatorName } from "../algorithms/kl.ts";
import { RunError, UserError } from "../base/errors.ts";
import { reasonOf, withRetries } from "../base/http.ts";
import { ownValue } from "../base/values.ts";
import type { Config } from "../config/schema.ts";
import { trainedPositions } from "../trajectories/batch.ts";
import type { Sequence } from "../trajectories/types.ts";
import type { Engine, Learner, Sample, SampleRequest, Sampler, Teacher } from "./engine.ts";
import { plainParams } from "./engine-parts.ts";
import { openAsk, readModels, tokenize, tokenizerProbe } from "./servers/control.ts";
import { addressOf, mayAnswerLater } from "./servers/group.ts";
import { serverSampler } from "./servers/sampler.ts";

// Two kinds of teachers: a learner that is not trained here, and a sampler that returns log-probabilities of prompts.

/** The learner's weights at the time of each call. */
export function learnerTeacher(learner: Learner): Teacher {
  const { mostLikely, maxLength } = learner;
  return {
    maxLength,
    logprobs: async (sequences) => (await learner.forward(sequences, {})).logprobs,
    ...(mostLikely ? { mostLikely: (sequences, count) => mostLikely(sequences, count) } : {}),
  };
}

/** @param maxLength of the sampler's model, for a prompt and the sampled token */
export function samplerTeacher(sampler: Pick<Sampler, "sample">, { maxLength }: { maxLength?: number }): Teacher {
  async function ask(
    sequences: readonly Sequence[],
    wanted: Pick<SampleRequest, "promptLogprobs" | "topPromptLogprobs">,
  ): Promise<Sample[]> {
    // Each sequence is a prompt; one more token is sampled and ignored, because servers refuse to sample none.
    const requests = sequences.map(({ tokens, media }) => ({
      ...{ prompt: tokens, params: plainParams, ...wanted },
      ...(media ? { media } : {}),
    }));
    const samples: Sample[] = [];
    for await (const sample of sampler.sample(requests)) samples[sample.request] = sample;
    return samples;
  }

  return {
    maxLength: maxLength === undefined ? undefined : maxLength - 1,
    async logprobs(sequences) {
      const samples = await ask(sequences, { promptLogprobs: true });
      const outputs = sequences.flatMap((sequence, index) => {
        const found = ofAll(sequence, samples[index]?.promptLogprobs, "log-probabilities");
        return trainedPositions(sequence.trained).map((position) => found[position + 1]!);
      });
      return Float32Array.from(outputs);
    },
    async mostLikely(sequences, count) {
      const samples = await ask(sequences, { topPromptLogprobs: count });
      const rows = sequences.flatMap((sequence, index) => {
        const found = ofAll(sequence, samples[index]?.topPromptLogprobs, "its most likely tokens");
        return trainedPositions(sequence.trained).map((position) => found[position + 1]!);
      });
      const short = rows.find(({ tokens }) => tokens.length !== count);
      if (short) throw new RunError(`the teacher returned ${short.tokens.length} likely tokens instead of ${count}`);
      return {
        tokens: Int32Array.from(rows.flatMap(({ tokens }) => [...tokens])),
        logprobs: Float32Array.from(rows.flatMap(({ logprobs }) => [...logprobs])),
        count,
      };
    },
  };
}

function ofAll<Values extends { length: number }>(
  { tokens }: Sequence,
  found: Values | undefined,
  what: string,
): Values {
  if (found?.length === tokens.length) return found;
  throw new RunError(`the teacher returned ${what} of ${found?.length ?? 0} tokens for a sequence of ${tokens.length}`);
}

// A teacher on an inference server that is running: vLLM, SGLang or `hone serve`.

export interface TeacherServer {
  url: string;
  /** The name at the server; undefined: the server's base model. */
  model: string | undefined;
  apiKey: string | undefined;
  /** Where the address and the key are set, for messages. */
  setting: string;
  /** Time limit of a request without progress. Default: that of samplers. */
  timeoutSeconds?: number;
  /** Delay before the first retry of a request; doubles with each retry. Default 1. */
  pauseSeconds?: number;
}

/** Maximum number of retries of a request. */
const maxRetries = 4;

/** The model that learns. */
export interface Policy extends Pick<Engine, "model"> {
  images: Engine["images"] | undefined;
  /** Without special tokens at its ends. */
  encode(text: string): ArrayLike<number>;
}

/** @throws UserError when the server does not have the model, or has another tokenizer; RunError when it does not answer */
export async function openServerTeacher(
  { url, model: wanted, apiKey, setting, timeoutSeconds, pauseSeconds = 1 }: TeacherServer,
  policy: Policy,
  onNote: (text: string) => void,
): Promise<{ teacher: Teacher; close(): Promise<void> }> {
  const settings = { url: `${setting}.base_url`, apiKey: `${setting}.api_key_env` };
  const asking = openAsk(addressOf(url, apiKey, settings), "vLLM or SGLang");
  const models = await readModels(asking);
  const model = wanted === undefined ? models.find(({ isBase }) => isBase) : models.find(({ name }) => name === wanted);
  if (model === undefined) {
    throw new UserError(`the teacher's server at ${url} does not serve "${wanted}"`, {
      hint: `it serves ${models.map(({ name }) => name).join(", ")}; set ${setting}.model`,
    });
  }
  await requireSameTokenizer();
  const kind = model.owner === "sglang" ? "sglang" : "vllm";
  const sampler = serverSampler({
    ...{ url, kind, model: model.name, apiKey, settings, onNote, logprobs: "raw", version: 0 },
    ...(timeoutSeconds === undefined ? {} : { timeoutSeconds }),
    images: policy.images,
  });
  const closed = new AbortController();
  let retries = 0;
  const { maxLength } = model;
  const teacher = samplerTeacher({ sample: askEach }, maxLength === undefined ? {} : { maxLength });
  return {
    teacher: {
      ...teacher,
      get retries() {
        return retries;
      },
    },
    async close() {
      closed.abort(new RunError("the teacher was closed"));
      await sampler.close();
    },
  };

  /** Repeats only the requests that failed. */
  async function* askEach(requests: readonly SampleRequest[]): AsyncGenerator<Sample> {
    let isReported = false;
    const onRetry = (error: unknown) => {
      retries++;
      if (!isReported) onNote(`retrying requests to the teacher at ${url} after: ${reasonOf(error)}`);
      isReported = true;
    };
    const options = { retries: maxRetries, pauseSeconds, signal: closed.signal, isTemporary: mayAnswerLater, onRetry };
    const asked = requests.map((request) => withRetries(() => only(sampler.sample([request])), options));
    for (const [index, sample] of (await Promise.all(asked)).entries()) yield { ...sample, request: index };
  }

  async function requireSameTokenizer(): Promise<void> {
    let theirs: number[];
    try {
      theirs = await tokenize(asking, model!.name, tokenizerProbe);
    } catch (error) {
      if (!(error instanceof RunError) || error.code !== "run_failed") throw error;
      onNote(`the tokenizer of the teacher at ${url} could not be compared with the policy's: ${error.message}`);
      return;
    }
    if (Array.from(policy.encode(tokenizerProbe)).join() === theirs.join()) return;
    throw new UserError(`the teacher at ${url} has a different vocabulary from ${policy.model.name}`, {
      hint: "a teacher scores the policy's own tokens, so it needs the same tokenizer",
    });
  }
}

async function only(samples: AsyncIterable<Sample>): Promise<Sample> {
  for await (const sample of samples) return sample;
  throw new RunError("the teacher's server returned nothing");
}

// The teachers and the loss that a configuration asks for.

export type TeacherSpec = {
  /** In metrics. */
  name: string;
  /** The value of the row's column; null: the only teacher. */
  key: string | null;
} & (
  | { kind: "model"; model: string }
  | {
      kind: "server";
      url: string;
      model: string | undefined;
      /** The key itself, or the environment variable that has it. */
      apiKey: string | { variable: string } | undefined;
    }
);

/** Empty: the policy teaches itself. */
export function teachersIn({ distillation, rllm: { distill } }: Config): TeacherSpec[] {
  const { model: older, base_url, api_key } = distill.teacher_rollout_args;
  const named = Object.entries(distillation.teacher_models).map(([name, given]): TeacherSpec => {
    const { key = null, model_path, base_url: url, model, api_key_env } = given;
    if (model_path != null) return { name, key, kind: "model", model: model_path };
    const apiKey = api_key_env == null ? undefined : { variable: api_key_env };
    return { name, key, kind: "server", url: url!, model: model ?? undefined, apiKey };
  });
  const about = { name: "teacher", key: null } as const;
  if (base_url !== null) {
    const server = { url: base_url, model: older ?? undefined, apiKey: api_key ?? undefined };
    named.push({ ...about, kind: "server", ...server });
  } else if (older !== null) named.push({ ...about, kind: "model", model: older });
  return named;
}

/** The divergence over several tokens; undefined: an estimate from the sampled token. */
export const divergenceIn = ({ distillation: { distillation_loss: loss } }: Config): DivergenceName | undefined =>
  ownValue(divergences, loss.loss_mode) === undefined ? undefined : (loss.loss_mode as DivergenceName);

export const estimatorIn = ({ distillation: { distillation_loss: loss } }: Config): KlEstimatorName =>
  loss.loss_mode as KlEstimatorName;

/** Whether the difference is added to the advantages. */
export const actsOnAdvantages = ({ distillation: { distillation_loss: loss } }: Config): boolean =>
  loss.use_policy_gradient ?? loss.loss_mode === "k1";

/** Whether a divergence compares the teacher's most likely tokens, and not only the sampled one. */
export function comparesLikely(config: Config): boolean {
  const name = divergenceIn(config);
  if (name === undefined) return false;
  const { support }: DivergenceDefinition = divergences[name];
  return support?.(config.distillation.distillation_loss) !== "sampled";
}

/** Whether the policy learns from rewards. */
export const learnsFromRewards = ({ distillation: { enabled, distillation_loss: loss } }: Config): boolean =>
  !enabled || loss.use_task_rewards;

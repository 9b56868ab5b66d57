/** A teacher on an inference server that is running: vLLM, SGLang or `hone serve`. */
import { RunError, UserError } from "../../errors.ts";
import { reasonOf, withRetries } from "../../http/retries.ts";
import type { Engine, Sample, SampleRequest, Teacher } from "../engine.ts";
import { openAsk } from "../servers/control/ask.ts";
import { readModels, tokenize, tokenizerProbe } from "../servers/control/control.ts";
import { addressOf, mayAnswerLater } from "../servers/server.ts";
import { serverSampler } from "../servers/server-sampler.ts";
import { samplerTeacher } from "./teachers.ts";

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

/** Two kinds of teachers: a learner that is not trained here, and a sampler that returns log-probabilities of prompts. */
import { RunError } from "../../errors.ts";
import { trainedPositions } from "../../trajectories/batch.ts";
import type { Sequence } from "../../trajectories/types.ts";
import type { Learner, Sample, SampleRequest, Sampler, Teacher } from "../engine.ts";
import { plainParams } from "../sampling-params.ts";

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

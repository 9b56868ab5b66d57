/** The requests for the scores of reward models: token ids in, one number per sequence out. */
import { z } from "zod";
import { UserError } from "../../../errors.ts";

export interface ScoringDialect {
  path: string;
  write(model: string, sequences: readonly (readonly number[])[]): object;
  /**
   * `[S]`
   * @param answer the body
   * @throws UserError if the answer has another form, or several numbers for a sequence
   */
  read(answer: string, address: string): number[];
}

const classified = z.object({ data: z.array(z.object({ index: z.int(), probs: z.array(z.number()) })) });

/** vLLM with `--runner pooling` and a sequence-classification model. */
const classify: ScoringDialect = {
  path: "/classify",
  // Without use_activation=false, vLLM returns the sigmoid of the score.
  write: (model, sequences) => ({ model, input: sequences, use_activation: false }),
  read(answer, address) {
    const { data } = parse(classified, answer, address);
    return data.toSorted((a, b) => a.index - b.index).map(({ probs }) => single(probs, address));
  },
};

const perToken = z.array(z.array(z.number())).min(1);
const lastOf = perToken.transform((rows) => rows.at(-1) ?? []);
const pooled = z.object({ data: z.array(z.object({ index: z.int(), data: z.union([z.array(z.number()), lastOf]) })) });

/** vLLM with a reward model that scores every token. The score of the last token is that of the sequence. */
const pooling: ScoringDialect = {
  path: "/pooling",
  write: (model, sequences) => ({ model, input: sequences, use_activation: false }),
  read(answer, address) {
    const { data } = parse(pooled, answer, address);
    return data.toSorted((a, b) => a.index - b.index).map(({ data: numbers }) => single(numbers, address));
  },
};

const embedded = z.array(z.object({ embedding: z.array(z.number()) }));

/** SGLang with `--is-embedding`. Its `/v1/classify` would return a softmax instead. */
const sglang: ScoringDialect = {
  path: "/classify",
  write: (_, sequences) => ({ input_ids: sequences }),
  read: (answer, address) => parse(embedded, answer, address).map(({ embedding }) => single(embedding, address)),
};

/** The routes to try, in order, by the `owned_by` of the server's model list. */
export const dialectsOf = (owner: string | undefined): readonly ScoringDialect[] =>
  owner === "sglang" ? [sglang] : [classify, pooling];

function parse<Answer>(schema: z.ZodType<Answer>, answer: string, address: string): Answer {
  try {
    return schema.parse(JSON.parse(answer));
  } catch (error) {
    throw new UserError(`${address} answered ${answer.slice(0, 200)} instead of scores`, { cause: error });
  }
}

function single(numbers: readonly number[], address: string): number {
  const [score] = numbers;
  if (score !== undefined && numbers.length === 1) return score;
  throw new UserError(`${address} gives a sequence ${numbers.length} numbers; a reward model gives one`);
}

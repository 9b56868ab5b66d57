/** Replies in the form of vLLM's `/inference/v1/generate`. */
import { zip } from "../../../arrays.ts";
import type { LikelyTokens, Sample } from "../../../backends/engine.ts";

const reasons = { stop: "stop", length: "length", aborted: "abort" } as const;

export interface ReplyHead {
  request_id: string;
  created: number;
  model: string;
}

export function toReply(head: ReplyHead, prompt: Int32Array, sample: Sample, logprobs: boolean): object {
  const { tokens, promptLogprobs, topPromptLogprobs, stopReason } = sample;
  return {
    ...head,
    choices: [
      {
        index: 0,
        token_ids: [...tokens],
        logprobs: logprobs ? { content: contentOf(sample) } : null,
        finish_reason: reasons[stopReason],
        weight_versions: versionSpans(sample),
      },
    ],
    prompt_logprobs: promptLogprobs
      ? Array.from(promptLogprobs, (logprob, at) =>
          at === 0 ? null : { ...likely(topPromptLogprobs?.[at]), [prompt[at]!]: { logprob } },
        )
      : null,
    usage: {
      prompt_tokens: prompt.length,
      completion_tokens: tokens.length,
      total_tokens: prompt.length + tokens.length,
    },
  };
}

const likely = ({ tokens, logprobs }: LikelyTokens = { tokens: new Int32Array(), logprobs: new Float32Array() }) =>
  Object.fromEntries(zip(tokens, logprobs).map(([token, logprob]) => [token, { logprob }]));

/** One event of a stream: a token. */
export const toEvent = (head: ReplyHead, token: number, logprob: number, logprobs: boolean): object => ({
  ...head,
  choices: [
    {
      index: 0,
      token_ids: [token],
      logprobs: logprobs ? { content: [{ token_id: token, logprob, top_logprobs: [] }] } : null,
      finish_reason: null,
    },
  ],
});

/** The last event of a stream: the tokens that were not streamed, and how the reply ended. */
export function toLastEvent(head: ReplyHead, sample: Sample, streamed: number, logprobs: boolean): object {
  return {
    ...head,
    choices: [
      {
        index: 0,
        token_ids: [...sample.tokens.subarray(streamed)],
        logprobs: logprobs ? { content: contentOf(sample).slice(streamed) } : null,
        finish_reason: reasons[sample.stopReason],
        weight_versions: versionSpans(sample),
      },
    ],
  };
}

/** The sampled token comes first among the likely ones. */
const contentOf = ({ tokens, logprobs, topLogprobs }: Sample) =>
  zip(tokens, logprobs).map(([token, logprob], at) => {
    const own = { token_id: token, logprob };
    const { tokens: likely = [], logprobs: others = [] } = topLogprobs?.[at] ?? {};
    const listed = zip(likely, others).map(([token_id, logprob]) => ({ token_id, logprob }));
    return { ...own, top_logprobs: [own, ...listed.filter(({ token_id }) => token_id !== token)] };
  });

/** First to last and without a gap. */
function versionSpans({ tokens, tokenVersions, policyVersion }: Sample) {
  const spans: { version: string; start: number; end: number }[] = [];
  for (let at = 0; at < tokens.length; at++) {
    const version = String(tokenVersions?.[at] ?? policyVersion);
    const last = spans.at(-1);
    if (last?.version === version) last.end = at + 1;
    else spans.push({ version, start: at, end: at + 1 });
  }
  return spans;
}

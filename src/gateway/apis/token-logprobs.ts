/** Log-probabilities of sampled tokens in the shapes of OpenAI's APIs. */
import { zip } from "../../arrays.ts";
import type { Chat } from "../../chat/types.ts";
import type { Generated } from "../../rollout/session/types.ts";

interface TokenLogprob {
  token: string;
  logprob: number;
  /** Null if the token is a part of a character. */
  bytes: number[] | null;
}

/** JSON has no infinity. */
const finite = (logprob: number) => Math.max(logprob, -9999);

function tokenLogprob(chat: Chat, token: number, logprob: number): TokenLogprob {
  const text = chat.decode([token]);
  return { token: text, logprob: finite(logprob), bytes: text.includes("\uFFFD") ? null : [...Buffer.from(text)] };
}

/** `choices[].logprobs.content` of chat completions; likewise of responses. */
export function chatLogprobs(
  chat: Chat,
  { tokens, logprobs, topLogprobs }: Pick<Generated, "tokens" | "logprobs" | "topLogprobs">,
): (TokenLogprob & { top_logprobs: TokenLogprob[] })[] {
  return zip(tokens, logprobs).map(([token, logprob], index) => {
    const top = topLogprobs?.[index];
    const alternatives = top ? zip(top.tokens, top.logprobs).map(([other, own]) => tokenLogprob(chat, other, own)) : [];
    return { ...tokenLogprob(chat, token, logprob), top_logprobs: alternatives };
  });
}

/** `choices[].logprobs` of completions. */
export function completionLogprobs(chat: Chat, { tokens, logprobs, topLogprobs }: Generated) {
  const texts = Array.from(tokens, (token) => chat.decode([token]));
  let offset = 0;
  return {
    tokens: texts,
    token_logprobs: Array.from(logprobs, finite),
    top_logprobs:
      topLogprobs?.map((top) =>
        Object.fromEntries(zip(top.tokens, top.logprobs).map(([token, own]) => [chat.decode([token]), finite(own)])),
      ) ?? null,
    text_offset: texts.map((text) => {
      const start = offset;
      offset += text.length;
      return start;
    }),
  };
}

/** A reply that is sampled in several parts, because its server failed or got new weights in between. */
import { deriveSeed } from "../../../random.ts";
import type { SampleRequest } from "../../engine.ts";
import type { ServerReply, VersionSpan } from "../dialects/dialect.ts";

/** The request for the rest of a reply. Its random draws differ from those of an uninterrupted reply. */
export function continuedRequest(request: SampleRequest, parts: readonly ServerReply[]): SampleRequest {
  const done = parts.reduce((sum, { tokens }) => sum + tokens.length, 0);
  if (done === 0) return request;
  const { prompt, params } = request;
  return {
    ...request,
    prompt: Int32Array.of(...prompt, ...parts.flatMap(({ tokens }) => [...tokens])),
    params: { ...params, maxTokens: params.maxTokens - done, seed: deriveSeed(params.seed, "continued", done) },
  };
}

export function joinReplies(parts: readonly ServerReply[]): ServerReply {
  const [first, ...others] = parts;
  if (first === undefined) throw new Error("a reply has at least one part");
  if (others.length === 0) return first;
  const topLogprobs = parts.flatMap((part) => part.topLogprobs ?? []);
  const joined: ServerReply = {
    tokens: Int32Array.from(parts.flatMap(({ tokens }) => [...tokens])),
    logprobs: Float32Array.from(parts.flatMap(({ logprobs }) => [...logprobs])),
    stopReason: parts.at(-1)!.stopReason,
    versions: joinVersions(parts),
  };
  if (topLogprobs.length > 0) joined.topLogprobs = topLogprobs;
  if (first.promptLogprobs !== undefined) joined.promptLogprobs = first.promptLogprobs;
  return joined;
}

/** Undefined if any part with tokens has no such values. */
function joinVersions(parts: readonly ServerReply[]): VersionSpan[] | undefined {
  const joined: VersionSpan[] = [];
  let start = 0;
  for (const { tokens, versions } of parts) {
    if (versions === undefined && tokens.length > 0) return undefined;
    for (const { version, end } of versions ?? []) {
      const last = joined.at(-1);
      if (last?.version === version) last.end = start + end;
      else joined.push({ version, end: start + end });
    }
    start += tokens.length;
  }
  return joined;
}

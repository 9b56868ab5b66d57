/** Joins the parts of a reply: the events of a stream, and what was sampled before and after a failure or new weights. */
import { RunError } from "../../../errors.ts";
import { isTemporaryStatus } from "../../../http/retries.ts";
import { isObject } from "../../../is-object.ts";
import { deriveSeed } from "../../../random.ts";
import type { SampleRequest } from "../../engine.ts";
import type { ServerReply, VersionSpan } from "../dialects/dialect.ts";
import { ServerFailed } from "../server.ts";

/**
 * Assembles a reply from a stream of server-sent events.
 *
 * @param read one event
 * @param onPiece called for each event
 */
export function gatherEvents(
  read: (event: Record<string, unknown>) => ServerReply,
  onPiece: (piece: ServerReply) => void,
): { push(text: string): void; soFar(): ServerReply; end(): ServerReply } {
  const pieces: ServerReply[] = [];
  let rest = "";
  let ended = false;

  function soFar(): ServerReply {
    const top = pieces.flatMap(({ topLogprobs }) => topLogprobs ?? []);
    const reply: ServerReply = {
      tokens: Int32Array.from(pieces.flatMap(({ tokens }) => Array.from(tokens))),
      logprobs: Float32Array.from(pieces.flatMap(({ logprobs }) => Array.from(logprobs))),
      stopReason: pieces.findLast(({ stopReason }) => stopReason !== undefined)?.stopReason,
      versions: pieces.findLast(({ versions }) => versions !== undefined)?.versions,
    };
    if (top.length > 0) reply.topLogprobs = top;
    const routing = pieces.at(-1)?.routing;
    if (routing !== undefined) reply.routing = routing;
    return reply;
  }

  return {
    push(text) {
      const lines = (rest + text).split("\n");
      rest = lines.pop()!;
      for (const line of lines) {
        if (!line.startsWith("data:")) continue;
        const data = line.slice("data:".length).trim();
        if (data === "[DONE]") {
          ended = true;
          continue;
        }
        const event = JSON.parse(data) as Record<string, unknown>;
        if (isObject(event.error)) {
          const Failure = isTemporaryStatus(Number(event.error.code)) ? ServerFailed : RunError;
          throw new Failure(`the inference server's stream failed: ${event.error.message}`);
        }
        const piece = read(event);
        pieces.push(piece);
        onPiece(piece);
      }
    },
    soFar,
    end() {
      const reply = soFar();
      if (ended && reply.stopReason !== undefined) return reply;
      throw new ServerFailed("the inference server's stream ended before the reply was complete");
    },
  };
}

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
  const routing = parts.flatMap((part) => part.routing ?? []);
  if (routing.length > 0) joined.routing = routing;
  if (first.promptLogprobs !== undefined) joined.promptLogprobs = first.promptLogprobs;
  if (first.topPromptLogprobs !== undefined) joined.topPromptLogprobs = first.topPromptLogprobs;
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

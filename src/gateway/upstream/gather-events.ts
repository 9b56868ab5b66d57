/** Puts a reply together that comes as a stream of server-sent events. */
import { RunError } from "../../errors.ts";
import { isObject } from "../read-parameters.ts";
import type { UpstreamReply } from "./upstream-policy.ts";

/**
 * @param read what one event tells
 * @param onPiece told of each
 */
export function gatherEvents(
  read: (event: Record<string, unknown>) => UpstreamReply,
  onPiece: (piece: UpstreamReply) => void,
): { push(text: string): void; end(): UpstreamReply } {
  const pieces: UpstreamReply[] = [];
  let rest = "";
  let ended = false;

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
        if (isObject(event.error)) throw new RunError(`the inference server's stream failed: ${event.error.message}`);
        const piece = read(event);
        onPiece(piece);
        pieces.push(piece);
      }
    },
    end() {
      const last = pieces.findLast(({ stopReason }) => stopReason !== undefined);
      if (!ended || last === undefined) throw new RunError("the inference server's stream ended before the reply did");
      const top = pieces.flatMap(({ topLogprobs }) => topLogprobs ?? []);
      return {
        tokens: Int32Array.from(pieces.flatMap(({ tokens }) => Array.from(tokens))),
        logprobs: Float32Array.from(pieces.flatMap(({ logprobs }) => Array.from(logprobs))),
        ...(top.length === 0 ? {} : { topLogprobs: top }),
        stopReason: last.stopReason,
        versions: pieces.findLast(({ versions }) => versions !== undefined)?.versions,
      };
    },
  };
}

/** Assembles a reply from a stream of server-sent events. */
import { RunError } from "../../../errors.ts";
import { isObject } from "../../../is-object.ts";
import type { ServerReply } from "../dialects/dialect.ts";
import { ServerFailed } from "./server-failed.ts";

/**
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
          const Failure = Number(event.error.code) >= 500 ? ServerFailed : RunError;
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

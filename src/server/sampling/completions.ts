/** Lists the ended requests of each sampling session, which clients read with a cursor. */
import { Notifier } from "../../concurrency/notifier.ts";
import type { FutureStore } from "../queue/futures.ts";

interface Completion {
  cursor: number;
  request: string;
  body: Record<string, unknown>;
}

/** Copy k of a sampling client numbers its requests from k times this. */
const idsPerClient = 1_000_000_000n;

/** Names a sampling session and which copy of its client asks. */
export const completionTarget = (sampler: string, client: bigint): string => `${sampler}/${client}`;

/** The oldest entries of longer lists are dropped. */
const longestList = 10_000;

export function createCompletions(futures: FutureStore) {
  const lists = new Map<string, { ended: Completion[]; next: number; changed: Notifier }>();
  const listOf = (target: string) => {
    const found = lists.get(target) ?? { ended: [], next: 1, changed: new Notifier() };
    lists.set(target, found);
    return found;
  };

  futures.onSettled((id, result) => {
    const [, sampler, number] = /^(.+:sample:\d+):(\d+)@/.exec(id) ?? [];
    if (sampler === undefined || number === undefined) return;
    const list = listOf(completionTarget(sampler, BigInt(number) / idsPerClient));
    const body: Record<string, unknown> = { state: result.kind === "failure" ? "failed" : "finished", request_id: id };
    if (result.kind === "protobuf") body.response_payload_uncompressed_size = result.body.byteLength;
    list.ended.push({ cursor: list.next++, request: id, body });
    list.ended.splice(0, Math.max(0, list.ended.length - longestList));
    list.changed.notify();
  });

  return {
    /** The requests that ended after `cursor`, waiting up to `waitMs` for the first. Drops those before it. */
    async read(target: string, cursor: number, waitMs: number, signal?: AbortSignal) {
      const list = listOf(target);
      list.ended = list.ended.filter((completion) => completion.cursor > cursor);
      if (list.ended.length === 0 && waitMs > 0) await list.changed.wait({ ms: waitMs, signal });
      const completions = list.ended.map(({ body }) => body);
      return { completions, cursor: list.ended.at(-1)?.cursor ?? cursor };
    },
    /** Drops requests whose results are no longer kept. */
    sweep(): void {
      for (const list of lists.values()) list.ended = list.ended.filter(({ request }) => futures.has(request));
    },
  };
}

/** Rows for `hone sft` and pairs for `hone dpo` from the trace store: agents behind the gateway, and imported spans. */
import type { ChatMessage } from "../chat/messages.ts";
import { conversationRows } from "../gateway/traces/conversation-rows.ts";
import { conversationsOf } from "../gateway/traces/export-traces.ts";
import type { TraceStore } from "../gateway/traces/open-trace-store.ts";
import type { TraceFilter } from "../gateway/traces/trace-reader.ts";
import { type Attempt, type Choice, type Chosen, chooseAttempts, pairs, rows } from "./choose-attempts.ts";

/**
 * Sessions of the same task are compared. A session without a task, such as an imported trace, is an attempt at its first
 * prompt.
 *
 * @throws UserError if the filter is not valid
 */
export function selectTraces(store: TraceStore, filter: TraceFilter, choice: Choice, as: "sft" | "pairs"): Chosen {
  function* attempts(): Generator<Attempt> {
    for (const session of store.sessions(filter)) {
      const answered = store.traces(session).filter(({ status }) => status === "ok");
      const conversations = answered.flatMap(conversationsOf);
      const { taskId, reward, correct, sampledTokens: tokens } = session;
      const prompt = (answered[0]?.messages ?? null) as ChatMessage[] | null;
      const task = taskId ?? JSON.stringify(prompt ?? session.session);
      yield { task, reward, correct, tokens, rows: conversationRows(conversations) };
    }
  }
  return chooseAttempts(attempts(), choice, as === "sft" ? rows : pairs);
}

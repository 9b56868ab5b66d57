/**
 * What an API lets a client demand of a reply although no engine can promise it: Hone's engines sample freely, since a
 * constrained sampler's log-probabilities are not the policy's. Such a demand is refused, or, where the gateway was set
 * up so, answered with what was sampled and counted.
 */
import type { ChatMessage } from "../../chat/messages.ts";
import type { CallContext } from "../model-call.ts";
import { type Body, badParameter } from "../read-parameters.ts";

export function demand({ unenforceable, notices }: CallContext, parameter: string, what: string): void {
  if (unenforceable === "refuse") {
    throw badParameter(
      parameter,
      `${what} cannot be guaranteed: replies are sampled freely, so that they can be learned from. Leave it out, or ` +
        "set rllm.gateway.unenforceable=allow to get what was sampled",
    );
  }
  notices.add(`unenforced/${parameter}`, `${what} is not enforced: the reply is what was sampled`);
}

export interface JsonWish {
  /** Undefined: any JSON. */
  schema: Body | undefined;
}

/** The wish for JSON as the model is told of it: in the system message, which is made where there is none. */
export function withJsonInstruction(
  messages: readonly ChatMessage[],
  wish: JsonWish | undefined,
): readonly ChatMessage[] {
  if (wish?.schema === undefined) return messages;
  const instruction = `Answer with a JSON value alone that is valid under this JSON Schema: ${JSON.stringify(wish.schema)}`;
  const [first, ...rest] = messages;
  if (first?.role !== "system") return [{ role: "system", content: instruction }, ...messages];
  return [{ ...first, content: `${first.content}\n\n${instruction}` }, ...rest];
}

/**
 * Guarantees that an API offers and that no engine can give: a constrained sampler's log-probabilities are not the
 * policy's, so Hone samples freely.
 */
import type { CallContext } from "../calls/model-call.ts";
import { badParameter } from "../requests/read-parameters.ts";

/** Refuses the guarantee, or, if the gateway is configured so, counts that it is not enforced. */
export function demand({ unenforceable, notices }: CallContext, parameter: string, what: string): void {
  if (unenforceable === "refuse") {
    throw badParameter(
      parameter,
      `${what} cannot be guaranteed, because replies are sampled freely for training. Remove it, or set ` +
        "rllm.gateway.unenforceable=allow to get what is sampled",
    );
  }
  notices.add(`unenforced/${parameter}`, `${what} is not enforced: the reply is what was sampled`);
}

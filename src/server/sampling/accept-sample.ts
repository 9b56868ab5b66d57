/** Accepts requests to sample: each is answered at once with a future, and samples when it is its turn. */
import { EngineDied } from "../../backends/engine-died.ts";
import type { ServerContext } from "../context.ts";
import { HttpError } from "../http-error.ts";
import { engineDown } from "../models/base-models.ts";
import type { Operations } from "../queue/operations.ts";
import type { Sessions } from "../state/sessions.ts";
import { readSampleCall } from "./sample-request.ts";
import type { Samplers } from "./samplers.ts";
import { sample } from "./sampling.ts";

export function createSampleAcceptor(
  context: ServerContext,
  sessions: Sessions,
  samplers: Samplers,
  operations: Operations,
) {
  const { futures, metrics, usage, log, boot } = context;
  const sinceLog = { sequences: 0, tokens: 0 };

  return {
    /** @param seq as digits: these ids can exceed 2^53 */
    accept(body: Record<string, unknown>, seq: string): Record<string, unknown> {
      const id = String(body.sampling_session_id);
      const { session, base } = samplers.require(body.sampling_session_id);
      if (session.finished) throw new HttpError(410, `the session ${session.id} is finished`);
      sessions.touch(session.id);
      const request = `${id}:${seq}@${boot}`;
      const given = body.num_samples;
      const count = typeof given === "number" && given >= 1 && given <= 1024 ? Math.floor(given) : 1;
      const sequences = Array.from({ length: count }, (_, index) => `${request}#${index}`);
      const answer = { request_id: request, sample_sequence_ids: sequences };
      if (futures.has(request)) return answer;
      const leave = base.scheduler.enter(count);
      if (!leave) {
        metrics.add("hone_refused_total", { queue: "sampling" });
        throw new HttpError(429, "too many sequences are waiting to be sampled; try again");
      }
      operations.start(request, id, {
        kind: "sample",
        async work(signal) {
          try {
            const call = await readSampleCall(body, base, signal);
            metrics.add("hone_prompt_tokens_total", {}, call.input.tokens.length);
            const how = call.topPrompt > 0 || call.targets || call.draws ? "scores" : "samples";
            const result = await samplers.use(id, how, (policy) => sample(policy, base, session.id, call, signal));
            metrics.add("hone_sampled_tokens_total", {}, result.sampledTokens);
            usage.add("sampling_prefill", session.id, base.name, call.input.tokens.length);
            usage.add("sampling_sample", session.id, base.name, result.sampledTokens);
            sinceLog.sequences += call.requests.length;
            sinceLog.tokens += result.sampledTokens;
            return { kind: result.kind, body: result.body };
          } catch (error) {
            if (!(error instanceof EngineDied)) throw error;
            if (base.keeper.lost) throw engineDown(base, error);
            // The weights are on disk: clients send the request again, as after a restart of the server.
            return { kind: "gone", why: "the engine died while it was sampled" };
          } finally {
            leave();
          }
        },
      });
      return answer;
    },

    /** Logs one line about what was sampled since the last call. */
    log() {
      if (sinceLog.sequences === 0) return;
      log.info("", `sampled ${sinceLog.sequences} sequences, ${sinceLog.tokens} tokens`);
      Object.assign(sinceLog, { sequences: 0, tokens: 0 });
    },
  };
}

/** A Tinker service as a sampler: of the base model until published weights are loaded. */
import type { Sampler } from "../engine.ts";
import { idOf } from "../published.ts";
import { type SamplingSession, sample, samplingSession } from "./sample.ts";
import type { TinkerSession } from "./session.ts";

export interface TinkerModel {
  /** The model's name at the service. */
  name: string;
  eosTokenIds: readonly number[];
}

export function createTinkerSampler(session: TinkerSession, model: TinkerModel): Sampler {
  let version = 0;
  let loaded: Promise<SamplingSession> | undefined;

  return {
    get version() {
      return version;
    },
    logprobs: session.capabilities.exactLogprobs ? "raw" : "processed",
    async *sample(requests, options = {}) {
      loaded ??= openBase(session, model.name);
      yield* sample(session, await loaded, requests, model.eosTokenIds, options);
    },
    async load(weights) {
      // Requests are counted per sampling session, so the count continues when the same one is loaded again.
      const id = idOf(weights);
      if ((await loaded)?.id === id) return;
      version = weights.version;
      loaded = Promise.resolve(samplingSession(id, version));
    },
    async close() {},
  };
}

async function openBase(session: TinkerSession, model: string): Promise<SamplingSession> {
  const answer = await session.connection.post("create_sampling_session", {
    type: "create_sampling_session",
    session_id: session.id,
    sampling_session_seq_id: session.nextSampler(),
    base_model: model,
  });
  return samplingSession(String(answer.sampling_session_id), 0);
}

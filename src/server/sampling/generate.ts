/** Samples for `/inference/v1/generate`: one sequence per request, without a session. */
import { setMaxListeners } from "node:events";
import type { Policy, Sample, SampleOptions, SampleRequest } from "../../backends/engine.ts";
import { EngineDied } from "../../backends/engine-died.ts";
import type { ServerContext } from "../context.ts";
import { HttpError } from "../http-error.ts";
import { type BaseModel, engineDown, findBaseModel } from "../models/base-models.ts";
import { requireCheckpoint } from "../state/checkpoints.ts";
import type { GenerateCall } from "./generate-request.ts";
import type { Samplers } from "./samplers.ts";
import type { ServedAdapters } from "./served-adapters.ts";

/** The clients of this route take turns with sampling sessions as one. */
const owner = "generate";

export interface Generation {
  /** The model's name. */
  model: string;
  request: SampleRequest;
  /** Ends early, with what was sampled, when the signal or `abort` says so. */
  run(signal: AbortSignal, onToken?: SampleOptions["onToken"]): Promise<Sample>;
}

export function createGenerator(context: ServerContext, samplers: Samplers, adapters: ServedAdapters) {
  const { models, metrics, usage } = context;
  const running = new Map<string, Set<AbortController>>();

  function modelOf(name: string): { base: BaseModel; use: <T>(work: (policy: Policy) => Promise<T>) => Promise<T> } {
    const loaded = adapters.find(name);
    if (loaded !== undefined) {
      const base = models[0]!;
      return { base, use: (work) => samplers.useSnapshot(base, loaded, work) };
    }
    if (!name.startsWith("tinker://")) {
      const base = findBaseModel(models, name);
      return { base, use: async (work) => work(await base.base.get()) };
    }
    const { baseModel, data, adapter } = requireCheckpoint(context, name);
    const base = findBaseModel(models, baseModel);
    return { base, use: (work) => samplers.useSnapshot(base, { data, adapter }, work) };
  }

  async function sampleOne(
    base: BaseModel,
    { sampler }: Policy,
    request: SampleRequest,
    signal: AbortSignal,
    onToken: SampleOptions["onToken"],
  ): Promise<Sample> {
    if (onToken === undefined) return (await base.gatherer.sample(sampler, owner, [request], signal))[0]!;
    for await (const sample of sampler.sample([{ ...request, signal }], { onToken })) return sample;
    throw new Error("the engine ended the call without answering it");
  }

  return {
    /** @throws UserError for a request that the model cannot answer */
    accept(call: GenerateCall): Generation {
      const name = call.model ?? models[0]!.name;
      const { base, use } = modelOf(name);
      const request = call.request(base.engine);
      return {
        model: name,
        request,
        async run(signal, onToken) {
          const leave = base.scheduler.enter(1);
          if (!leave) {
            metrics.add("hone_refused_total", { queue: "sampling" });
            throw new HttpError(429, "too many sequences are waiting to be sampled; try again");
          }
          const stop = new AbortController();
          const { id = "" } = call;
          const sameId = running.get(id) ?? new Set();
          running.set(id, sameId.add(stop));
          const either = AbortSignal.any([signal, stop.signal]);
          setMaxListeners(0, either);
          try {
            const sample = await use((policy) =>
              base.scheduler.sample(owner, 1, () => sampleOne(base, policy, request, either, onToken)),
            );
            metrics.add("hone_prompt_tokens_total", {}, request.prompt.length);
            metrics.add("hone_sampled_tokens_total", {}, sample.tokens.length);
            usage.add("sampling_prefill", null, base.name, request.prompt.length);
            usage.add("sampling_sample", null, base.name, sample.tokens.length);
            return sample;
          } catch (error) {
            if (!(error instanceof EngineDied)) throw error;
            if (base.keeper.lost) throw engineDown(base, error);
            throw new HttpError(503, `the engine of ${base.name} died and is restarted; send the request again`);
          } finally {
            leave();
            sameId.delete(stop);
            if (sameId.size === 0) running.delete(id);
          }
        },
      };
    },
    abort(ids: readonly string[]): void {
      // vLLM's own ids have the prefix.
      for (const id of ids) for (const stop of running.get(id.replace(/^generate-tokens-/, "")) ?? []) stop.abort();
    },
  };
}

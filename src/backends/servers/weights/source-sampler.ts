/**
 * Samples from servers that get their weights from elsewhere, such as verl's workers. A running request ends before new
 * weights arrive and continues with them, so each of its parts has one version.
 */
import { setTimeout as sleep } from "node:timers/promises";
import { idOf } from "../../published.ts";
import type { ServerGroup } from "../server-group.ts";
import { type ServedModelOptions, sampleFrom } from "../server-sampler.ts";
import type { ServerProbes } from "./parity-probe.ts";
import type { SyncedSampler } from "./synced-sampler.ts";

export interface WeightSource {
  /** For the run's first line. */
  name: string;
  /** Ends all requests that the servers have; each is answered with what it has. Later ones wait for the next `update`. */
  endRequests(): Promise<void>;
  /** Frees the servers' memory until the next `update`. No request may be running. */
  sleep(): Promise<void>;
  /** Gives all servers the current weights. No request may be running. */
  update(version: number): Promise<void>;
}

/** A request that arrives after others were ended waits at its server, and is ended again. */
const againMs = 100;

/** @param model without a version, which is that of the last `load` */
export function sourceSampler(
  group: ServerGroup,
  source: WeightSource,
  probes: ServerProbes,
  model: Omit<ServedModelOptions, "version">,
): SyncedSampler {
  let version = 0;
  let loading: Promise<void> | undefined;
  /** Parts of replies that the servers sample. */
  let running = 0;
  const metrics: Record<string, number> = {};

  const sampler = sampleFrom(group, model, async () => {
    while (loading) await loading;
    running++;
    return { ...model, version, release: () => void running-- };
  });

  async function update(next: number): Promise<void> {
    while (running > 0) {
      await sampler.interrupt(source.endRequests);
      if (running > 0) await sleep(againMs);
    }
    const send = async () => {
      await source.update(next);
      return { ...model, version: next };
    };
    Object.assign(metrics, await probes.check(await send(), next, send));
    version = next;
  }

  return {
    metrics,
    logprobs: sampler.logprobs,
    separate: true,
    get version() {
      return version;
    },
    sample: sampler.sample,
    async load(published) {
      idOf(published);
      const begin = performance.now();
      probes.prompt = sampler.lastPrompt ?? probes.prompt;
      loading = update(published.version);
      try {
        await loading;
      } finally {
        loading = undefined;
      }
      metrics["rollout/sync_seconds"] = (performance.now() - begin) / 1000;
    },
    sleep: source.sleep,
    close: sampler.close,
  };
}

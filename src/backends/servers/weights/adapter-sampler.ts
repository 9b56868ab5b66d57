/**
 * Loads new LoRA adapters on a server, and samples from them. Running requests continue with a new version if the server can
 * end them early; otherwise they keep the version that they began with.
 */
import { rmSync } from "node:fs";
import { UserError } from "../../../errors.ts";
import type { Control } from "../control/control.ts";
import type { ServerGroup } from "../server-group.ts";
import { type ServedModelOptions, sampleFrom } from "../server-sampler.ts";
import type { ServerProbes } from "./parity-probe.ts";
import { requireKind, type SyncedSampler } from "./synced-sampler.ts";

interface Loaded {
  version: number;
  name: string;
  path: string;
  /** Requests that the server samples with it. */
  running: number;
}

/** @param kind of the servers, which log-probabilities they give, and how the model sees images */
export function adapterSampler(
  group: ServerGroup,
  control: Control,
  probes: ServerProbes,
  kind: Pick<ServedModelOptions, "kind" | "logprobs" | "images">,
): SyncedSampler {
  let current: Loaded | undefined;
  /** On the server, older than the current one. */
  let old: Loaded[] = [];
  /** Folders that the server does not need any more. */
  let unloaded: string[] = [];
  const metrics: Record<string, number> = {};

  async function unload(adapters: readonly Loaded[]): Promise<void> {
    for (const { name } of adapters) await control.unloadAdapter(name);
  }

  /** While the server is probed, no other request runs: it would change how exactly the server computes. */
  let probing: Promise<Record<string, number>> | undefined;

  const sampler = sampleFrom(group, kind, async () => {
    while (probing) await probing.catch(() => undefined);
    const used = current;
    if (used === undefined) throw new UserError("the inference server has no adapter to sample with");
    used.running++;
    return { adapter: used.name, version: used.version, release: () => void used.running-- };
  });

  const remove = (paths: readonly string[]) => {
    for (const path of paths) rmSync(path, { recursive: true, force: true });
  };

  return {
    metrics,
    logprobs: sampler.logprobs,
    separate: true,
    get version() {
      return current?.version ?? 0;
    },
    sample: sampler.sample,
    async load(published) {
      const { version, name, path } = requireKind(published, "adapter", group);
      const begin = performance.now();
      probes.prompt = sampler.lastPrompt ?? probes.prompt;
      const next = { version, name, path, running: 0 };
      const send = async () => {
        await control.loadAdapter(next.name, path);
        return { ...kind, adapter: next.name, version };
      };
      const sendAgain = async () => {
        await control.unloadAdapter(next.name);
        next.name = `${name}-again`;
        return send();
      };
      const served = await send();
      const previous = current;
      probing = sampler.interrupt().then(() => probes.check(served, version, sendAgain));
      try {
        Object.assign(metrics, await probing);
        current = next;
      } catch (error) {
        old.push(next);
        throw error;
      } finally {
        probing = undefined;
      }
      // A request that was just aborted may still run for a moment, and a server fails if an adapter's files are gone.
      remove(unloaded);
      const idle = old.filter(({ running }) => running === 0);
      await unload(idle);
      unloaded = idle.map((adapter) => adapter.path);
      old = old.filter((adapter) => !idle.includes(adapter));
      if (previous) old.push(previous);
      metrics["rollout/sync_seconds"] = (performance.now() - begin) / 1000;
    },
    async close() {
      // The server may have ended before the run.
      await unload(current ? [...old, current] : old).catch(() => {});
    },
  };
}

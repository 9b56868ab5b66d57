/** Samples from a server whose weights it replaces. Running requests continue with the new ones. */
import { rmSync } from "node:fs";
import { RunError } from "../../../errors.ts";
import type { Published } from "../../engine.ts";
import type { Control } from "../control/control.ts";
import type { ServerGroup } from "../server-group.ts";
import { type ServedModelOptions, sampleFrom } from "../server-sampler.ts";
import type { ServerProbes } from "./parity-probe.ts";
import { requireKind, type SyncedSampler } from "./synced-sampler.ts";

/** @param model without a version: replies report that of each token */
export function weightsSampler(
  group: ServerGroup,
  control: Control,
  probes: ServerProbes,
  model: Omit<ServedModelOptions, "version">,
): SyncedSampler {
  const served = { ...model, isLabelled: true };
  const sampler = sampleFrom(group, served);
  let current: { version: number; path: string | undefined } | undefined;
  const metrics: Record<string, number> = {};

  /** @returns the folder of the weights, if they go through files */
  async function replace(published: Published): Promise<string | undefined> {
    const label = `${published.version}`;
    if (published.kind === "collective" && control.receiveWeights) {
      await control.receiveWeights(published.group, label);
      return undefined;
    }
    const { path } = requireKind(published, "weights", group);
    await control.loadWeights(path, label);
    return path;
  }

  return {
    metrics,
    logprobs: sampler.logprobs,
    separate: true,
    get version() {
      return current?.version ?? 0;
    },
    sample: sampler.sample,
    async load(published) {
      const begin = performance.now();
      probes.prompt = sampler.lastPrompt ?? probes.prompt;
      const { version } = published;
      if (current === undefined && hasTrained(await control.weightVersion())) await probes.remember(model);
      let path: string | undefined;
      const send = async () => {
        path = await replace(published);
        const label = await control.weightVersion();
        if (label !== `${version}`) throw otherVersion(group, version, label);
        return served;
      };
      Object.assign(metrics, await probes.check(await send(), version, send));
      // The server needs the files of these weights only if it is restarted.
      if (current?.path) rmSync(current.path, { recursive: true, force: true });
      current = { version, path };
      metrics["rollout/sync_seconds"] = (performance.now() - begin) / 1000;
    },
    close: sampler.close,
  };
}

/** Whether all servers have weights that a process has trained. Before the first update, vLLM and SGLang report "default". */
const hasTrained = (labels: string) => labels.split(", ").every((label) => Number(label) > 0);

function otherVersion({ servers }: ServerGroup, version: number, label: string): RunError {
  return new RunError(
    `the inference server at ${servers[0]?.url} acknowledged version ${version} of the weights, but reports "${label}"`,
    { code: "sampler_mismatch", hint: "use the server for one run at a time; restart it, then continue with --resume" },
  );
}

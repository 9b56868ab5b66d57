/** Probes the weights of each server by itself, because each can fail to apply an update. */
import type { Learner, Sampler } from "../../engine.ts";
import type { ServerGroup } from "../server-group.ts";
import { type ServedModelOptions, sampleFrom } from "../server-sampler.ts";
import { type ParityProbe, type ProbePrompt, parityProbe } from "./parity-probe.ts";

export interface ServerProbes {
  /** Later probes begin with this prompt, as rollouts do. */
  prompt: ProbePrompt;
  /** See `ParityProbe.remember`. */
  remember(served: ServedModelOptions): Promise<void>;
  /**
   * @returns the largest difference between a server and the learner, see `ParityProbe.check`
   * @throws RunError if a server and the trainer have different weights
   */
  check(served: ServedModelOptions, version: number): Promise<number>;
}

export function probeServers(group: ServerGroup, learner: Pick<Learner, "forward">, prompt: ProbePrompt): ServerProbes {
  const probes = new Map<unknown, ParityProbe>(
    group.servers.map((server) => [server, parityProbe(learner, server.url, prompt)]),
  );
  const each = <T>(served: ServedModelOptions, use: (probe: ParityProbe, sampler: Sampler) => Promise<T>) =>
    group.each((server) => {
      const probe = probes.get(server)!;
      probe.prompt = all.prompt;
      return use(probe, sampleFrom({ servers: [server], run: (_, ask) => ask(server) }, served));
    });
  const all: ServerProbes = {
    prompt,
    async remember(served) {
      await each(served, (probe, sampler) => probe.remember(sampler));
    },
    async check(served, version) {
      return Math.max(...(await each(served, (probe, sampler) => probe.check(sampler, version))));
    },
  };
  return all;
}

/** Probes the weights of each server by itself, because each can fail to apply an update. */
import type { Learner } from "../../engine.ts";
import type { ServerGroup } from "../server-group.ts";
import { type ServedModelOptions, sampleFrom } from "../server-sampler.ts";
import { type ParityProbe, type ProbePrompt, parityProbe } from "./parity-probe.ts";

export interface ServerProbes {
  /** Later probes begin with this prompt, as rollouts do. */
  prompt: ProbePrompt;
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
  const all: ServerProbes = {
    prompt,
    async check(served, version) {
      const differences = await group.each((server) => {
        const probe = probes.get(server)!;
        probe.prompt = all.prompt;
        const sampler = sampleFrom({ servers: [server], run: (_, ask) => ask(server) }, served);
        return probe.check(sampler, version);
      });
      return Math.max(...differences);
    },
  };
  return all;
}

/** What samplers of servers that get a run's weights have in common. */
import { UserError } from "../../../errors.ts";
import type { Published, Sampler } from "../../engine.ts";
import type { ServerGroup } from "../server-group.ts";

export interface SyncedSampler extends Sampler {
  /** Measured at the last load. */
  metrics: Record<string, number>;
}

type OfKind<Kind> = Extract<Published, { path: string }> & { kind: Kind };

/** @throws UserError when the weights are of another kind */
export function requireKind<Kind extends "adapter" | "weights">(
  published: Published,
  kind: Kind,
  { servers }: Pick<ServerGroup, "servers">,
): OfKind<Kind> {
  if (published.kind === kind) return published as OfKind<Kind>;
  throw new UserError(`the inference server at ${servers[0]?.url} cannot load weights of the kind "${published.kind}"`);
}

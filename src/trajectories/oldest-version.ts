import type { Episode, Step } from "./types.ts";

/**
 * The oldest version of the policy that sampled any token of the episodes; undefined if the policy sampled none of them.
 * Models that are not trained do not count.
 */
export function oldestVersion(episodes: readonly Episode[]): number | undefined {
  const steps = episodes.flatMap(({ trajectories }) => trajectories.flatMap((trajectory) => trajectory.steps));
  const versions = steps.filter(({ policyVersion }) => policyVersion >= 0).map(oldestOf);
  return versions.length === 0 ? undefined : versions.reduce((oldest, version) => Math.min(oldest, version));
}

const oldestOf = ({ policyVersion, tokenVersions }: Step): number =>
  tokenVersions === undefined
    ? policyVersion
    : tokenVersions.reduce((oldest, one) => Math.min(oldest, one), policyVersion);

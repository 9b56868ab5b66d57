/** The end of an episode's own conversation: a title may have been asked for after it. */
import { isSideRole } from "./types.ts";

/** @returns the last step of the last trajectory, of side calls only if there are no others */
export function lastStep<Step>(trajectories: readonly { name: string; steps: readonly Step[] }[]): Step | undefined {
  const own = trajectories.filter(({ name, steps }) => !isSideRole(name) && steps.length > 0);
  return (own.length > 0 ? own : trajectories).flatMap(({ steps }) => steps).at(-1);
}

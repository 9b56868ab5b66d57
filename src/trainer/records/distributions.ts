/** The values of a step whose distribution the plots show. */
import type { Distributions } from "../../tracking/events.ts";
import { type StepTrainings, unpackValues } from "../../tracking/run-folder/token-values.ts";
import type { Episode } from "../../trajectories/types.ts";

/** @param trainings undefined: the entropy is unknown */
export function distributions(episodes: readonly Episode[], trainings: StepTrainings | undefined): Distributions {
  const trajectories = episodes.flatMap((episode) => episode.trajectories);
  return {
    response_length: trajectories.flatMap(({ steps }) => steps.map(({ tokens }) => tokens.length)),
    reward: trajectories.flatMap(({ reward }) => reward ?? []),
    entropy: trajectories.flatMap((trajectory) =>
      trajectory.steps.flatMap(({ tokens }, index) => [
        ...(unpackValues(trainings?.get(trajectory)?.[index]?.entropy, tokens.length) ?? []),
      ]),
    ),
  };
}

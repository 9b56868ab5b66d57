/** An episode out of the JSON that `toJson` makes of it. */
import type { Episode, Step, Trajectory } from "../trajectories/types.ts";
import { figuresOf, readNumber } from "./json-lines.ts";

/** @returns the episode as it was: typed arrays, and numbers that JSON does not know */
export function readEpisode(json: string): Episode {
  const { trajectories, metrics, ...rest } = JSON.parse(json) as Episode;
  return { ...rest, trajectories: trajectories.map(readTrajectory), metrics: figuresOf(metrics) };
}

function readTrajectory({ steps, reward, ...rest }: Trajectory): Trajectory {
  return { ...rest, steps: steps.map(readStep), reward: readNullable(reward) };
}

function readStep({ promptTokens, tokens, logprobs, tokenVersions, reward, advantage, ...rest }: Step): Step {
  return {
    ...rest,
    promptTokens: Int32Array.from(promptTokens),
    tokens: Int32Array.from(tokens),
    logprobs: Float32Array.from(logprobs, readNumber),
    ...(tokenVersions === undefined ? {} : { tokenVersions: Int32Array.from(tokenVersions) }),
    reward: readNullable(reward),
    ...(advantage === undefined
      ? {}
      : { advantage: typeof advantage === "object" ? Array.from(advantage, readNumber) : readNumber(advantage) }),
  };
}

const readNullable = (value: unknown) => (value === null ? null : readNumber(value));

/** Reads an episode from the JSON that `toJson` writes. */
import type { Episode, Step } from "../../trajectories/types.ts";
import { numbersOf, readNumber } from "./json-lines.ts";

/**
 * @returns the episode with its typed arrays and its numbers that JSON does not have
 * @throws Error when the text is not an episode
 */
export function readEpisode(json: string): Episode {
  const episode = JSON.parse(json) as Episode | null;
  if (!Array.isArray(episode?.trajectories)) throw new Error("it has no trajectories");
  const trajectories = episode.trajectories.map((trajectory) => {
    return { ...trajectory, steps: trajectory.steps.map(readStep), reward: readNullable(trajectory.reward) };
  });
  return { ...episode, trajectories, metrics: numbersOf(episode.metrics) };
}

function readStep(parsed: Step): Step {
  const step: Step = {
    ...parsed,
    promptTokens: Int32Array.from(parsed.promptTokens),
    tokens: Int32Array.from(parsed.tokens),
    logprobs: Float32Array.from(parsed.logprobs, readNumber),
    reward: readNullable(parsed.reward),
  };
  const { tokenVersions, advantage } = parsed;
  if (tokenVersions !== undefined) step.tokenVersions = Int32Array.from(tokenVersions);
  if (typeof advantage === "object") step.advantage = advantage.map(readNumber);
  else if (advantage !== undefined) step.advantage = readNumber(advantage);
  return step;
}

const readNullable = (value: unknown) => (value === null ? null : readNumber(value));

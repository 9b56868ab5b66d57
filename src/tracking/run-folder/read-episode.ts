/** Reads an episode from the JSON that `toJson` writes. */
import type { z } from "zod";
import type { Episode, Step } from "../../trajectories/types.ts";
import { episodeSchema } from "./episode-schema.ts";
import { numbersOf, parseLine, readNumber } from "./json-lines.ts";

type ParsedStep = z.output<typeof episodeSchema>["trajectories"][number]["steps"][number];

/**
 * @returns the episode with its typed arrays and its numbers that JSON does not have
 * @throws Error with a clause about what is wrong, when the text is not an episode
 */
export function readEpisode(json: string): Episode {
  const episode = parseLine(episodeSchema, json);
  const trajectories = episode.trajectories.map((trajectory) => {
    const { advantage } = trajectory;
    const read = { ...trajectory, steps: trajectory.steps.map(readStep) };
    if (typeof advantage === "object") read.advantage = advantage.map(readAdvantage);
    return read;
  });
  return { ...episode, trajectories, metrics: numbersOf(episode.metrics) } as Episode;
}

const readAdvantage = <Value extends number | readonly number[]>(value: Value) =>
  (typeof value === "object" ? value.map(readNumber) : value) as Value;

function readStep({ tokenVersions, advantage, ...parsed }: ParsedStep): Step {
  const step = {
    ...parsed,
    promptTokens: Int32Array.from(parsed.promptTokens),
    tokens: Int32Array.from(parsed.tokens),
    logprobs: Float32Array.from(parsed.logprobs, readNumber),
  } as Step;
  if (tokenVersions !== undefined) step.tokenVersions = Int32Array.from(tokenVersions);
  if (advantage !== undefined) step.advantage = readAdvantage(advantage);
  return step;
}

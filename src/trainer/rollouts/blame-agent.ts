/**
 * Decides again whose failures those after faulty replies are, once all rollouts of a step have ended. A single rollout
 * cannot tell a program that fails because its model's reply was cut off from one that always fails.
 */
import { withoutFault } from "../../rollout/attempt/failures.ts";
import { isThrownByHone, userFrames } from "../../stack-frames.ts";
import type { Episode, Failure } from "../../trajectories/types.ts";

/**
 * A failure after a faulty reply is the agent's if no rollout with a sound reply ended well, and one of them failed for
 * the same cause.
 */
export function blameAgent(episodes: readonly Episode[], warn: (text: string) => void): Episode[] {
  const sound = episodes.filter(({ failure }) => failure?.kind !== "model");
  const same = new Set(sound.flatMap(({ failure }) => (failure?.kind === "agent" ? causeOf(failure) : [])));
  if (sound.some(({ failure }) => failure === undefined)) return [...episodes];
  let count = 0;
  const judged = episodes.map((episode): Episode => {
    const { failure } = episode;
    if (failure?.kind !== "model" || !same.has(causeOf(failure))) return episode;
    count++;
    return { ...episode, termination: "error", failure: { ...failure, kind: "agent" } };
  });
  if (count > 0) {
    warn(
      `${count} rollouts that failed after a faulty reply of the model count as failures of the agent: it fails in the same way after sound replies`,
    );
  }
  return judged;
}

/**
 * Equal for failures with one cause: errors of one class from the same line of the user's code, whose messages may quote the
 * reply, or messages that differ only in numbers, such as ports and times.
 */
export function causeOf({ boundary, message, stack }: Failure): string {
  const said = withoutFault(message);
  const frames = isThrownByHone(stack) ? "" : userFrames(stack);
  return `${boundary}: ${frames === "" ? said.replace(/\d+/g, "#") : `${said.split(":", 1)} ${frames}`}`;
}

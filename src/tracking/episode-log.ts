/**
 * Episodes as readable JSON files, one each, in the layout of rLLM's episode logger, for the tools that people have for
 * it. The run folder's own episodes hold the tokens; these hold what a person reads.
 */
import { createHash } from "node:crypto";
import { join } from "node:path";
import { writeWhole } from "../files/durable-files.ts";
import { makeFolder } from "../files/make-folder.ts";
import type { Episode, Trajectory } from "../trajectories/types.ts";

export interface LoggedStep {
  mode: "train" | "val";
  step: number;
  epoch: number;
}

/**
 * Writes `{directory}/episodes/{mode}_step_{step}_epoch_{epoch}/episode_hash{8}_id{id}.json` for each episode, and
 * batch_summary.json. A step that is logged again is replaced file by file.
 *
 * @returns the folder
 * @throws the file system's error, or RunError when the disk is full
 */
export function logEpisodes(
  directory: string,
  { mode, step, epoch }: LoggedStep,
  episodes: readonly Episode[],
): string {
  const folder = join(directory, "episodes", `${mode}_step_${step}_epoch_${epoch}`);
  makeFolder(folder);
  const files = episodes.map((episode) => {
    const { row: task } = episode;
    const hash = createHash("sha256").update(sortedJson(task)).digest("hex").slice(0, 8);
    const file = `episode_hash${hash}_id${episode.id.replaceAll(/[:/\\]/g, "_")}.json`;
    const content = { training_step: step, epoch, ...readable(episode), task, task_hash: hash };
    writeWhole(join(folder, file), [`${JSON.stringify(content, null, 2)}\n`]);
    return file;
  });
  const correct = episodes.filter((episode) => episode.correct === true).length;
  const summary = {
    training_step: step,
    epoch,
    mode,
    num_episodes: episodes.length,
    episode_files: files,
    summary_stats: {
      total_correct: correct,
      total_incorrect: episodes.length - correct,
      accuracy: episodes.length === 0 ? 0 : correct / episodes.length,
      avg_trajectories_per_episode:
        episodes.reduce((sum, { trajectories }) => sum + trajectories.length, 0) / Math.max(1, episodes.length),
    },
  };
  writeWhole(join(folder, "batch_summary.json"), [`${JSON.stringify(summary, null, 2)}\n`]);
  return folder;
}

function readable(episode: Episode) {
  return {
    episode_id: episode.id,
    is_correct: episode.correct,
    termination_reason: episode.termination,
    ...(episode.failure === undefined ? {} : { failure: episode.failure }),
    ...(episode.explanation === undefined ? {} : { explanation: episode.explanation }),
    metrics: episode.metrics,
    timing: { seconds: episode.seconds, retries: episode.retries },
    trajectories: episode.trajectories.map((trajectory) => readableTrajectory(episode.id, trajectory)),
  };
}

function readableTrajectory(episode: string, { name, instance, reward, steps }: Trajectory) {
  return {
    name,
    uid: `${episode}:${name}${instance === undefined ? "" : `:${instance}`}`,
    reward,
    num_steps: steps.length,
    steps: steps.map((step, index) => ({
      observation: step.messages.at(-1)?.content ?? null,
      thought: step.reply?.reasoning ?? null,
      action: step.reply?.toolCalls?.length ? step.reply.toolCalls : (step.reply?.content ?? step.text),
      reward: step.reward,
      done: index === steps.length - 1,
      model_response: step.text,
      chat_completions: step.messages,
      ...(step.tools === undefined ? {} : { tools: step.tools }),
      ...(step.reply?.problems.length ? { problems: step.reply.problems } : {}),
    })),
  };
}

/** The same text for the same task, whatever order its keys are in. */
function sortedJson(value: unknown): string {
  const sorted = JSON.stringify(value, (_key, inner: unknown) =>
    typeof inner === "object" && inner !== null && !Array.isArray(inner)
      ? Object.fromEntries(Object.entries(inner).sort(([left], [right]) => (left < right ? -1 : 1)))
      : inner,
  );
  return sorted ?? "null";
}

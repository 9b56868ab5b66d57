/**
 * Episodes as readable JSON files in the layout of rLLM's episode logger, for tools that read it. The run folder's own
 * episodes have the tokens; these have the text.
 */
import { createHash } from "node:crypto";
import { join } from "node:path";
import { writeWhole } from "../../files/durable-files.ts";
import { makeFolder } from "../../files/make-folder.ts";
import { sortedJson } from "../../sorted-json.ts";
import type { Episode, Step, Trajectory } from "../../trajectories/types.ts";

interface LoggedStep {
  mode: "train" | "val";
  step: number;
  epoch: number;
}

/**
 * Writes `{directory}/episodes/{mode}_step_{step}_epoch_{epoch}/episode_hash{8}_id{id}.json` for each episode, and
 * batch_summary.json. Logging a step again replaces its files.
 *
 * @throws the file system's error, or RunError when the disk is full
 */
export function logEpisodes(
  directory: string,
  { mode, step, epoch }: LoggedStep,
  episodes: readonly Episode[],
): string {
  const folder = join(directory, "episodes", `${mode}_step_${step}_epoch_${epoch}`);
  makeFolder(folder);
  const write = (file: string, content: object) =>
    writeWhole(join(folder, file), [`${JSON.stringify(content, null, 2)}\n`]);
  const files = episodes.map((episode) => {
    const { row: task } = episode;
    const hash = createHash("sha256").update(sortedJson(task)).digest("hex").slice(0, 8);
    const file = `episode_hash${hash}_id${episode.id.replaceAll(/[:/\\]/g, "_")}.json`;
    write(file, { training_step: step, epoch, ...readable(episode), task, task_hash: hash });
    return file;
  });
  const count = Math.max(1, episodes.length);
  const correct = episodes.filter((episode) => episode.correct === true).length;
  const trajectories = episodes.reduce((sum, episode) => sum + episode.trajectories.length, 0);
  write("batch_summary.json", {
    training_step: step,
    epoch,
    mode,
    num_episodes: episodes.length,
    episode_files: files,
    summary_stats: {
      total_correct: correct,
      total_incorrect: episodes.length - correct,
      accuracy: correct / count,
      avg_trajectories_per_episode: trajectories / count,
    },
  });
  return folder;
}

/** JSON leaves out what is undefined. */
const readable = ({ id, trajectories, ...episode }: Episode) => ({
  episode_id: id,
  is_correct: episode.correct,
  termination_reason: episode.termination,
  failure: episode.failure,
  explanation: episode.explanation,
  metrics: episode.metrics,
  timing: { seconds: episode.seconds, retries: episode.retries },
  trajectories: trajectories.map(({ name, instance, reward, scores, steps }: Trajectory) => ({
    name,
    uid: `${id}:${name}${instance === undefined ? "" : `:${instance}`}`,
    reward,
    scores,
    num_steps: steps.length,
    steps: steps.map((step, index) => readableStep(step, index === steps.length - 1)),
  })),
});

const readableStep = ({ messages, reply, text, reward, tools }: Step, done: boolean) => ({
  observation: messages.at(-1)?.content ?? null,
  thought: reply?.reasoning ?? null,
  action: reply?.toolCalls?.length ? reply.toolCalls : (reply?.content ?? text),
  reward,
  done,
  model_response: text,
  chat_completions: messages,
  tools,
  problems: reply?.problems.length ? reply.problems : undefined,
});

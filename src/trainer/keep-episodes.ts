/** What a run keeps of its episodes: all of them in its folder, readable files and plots where they are asked for. */
import { join, relative } from "node:path";
import { logEpisodes } from "../tracking/episode-log.ts";
import { plotLengths } from "../tracking/length-plot.ts";
import { sampleRows } from "../tracking/samples.ts";
import type { MemberAdvantage } from "../trajectories/to-batch.ts";
import type { Episode, Trajectory } from "../trajectories/types.ts";
import type { Credit } from "./assign-credit.ts";
import type { Run } from "./run.ts";

/** @throws RunError when the run folder cannot be written; the rest is only warned of */
export function keepEpisodes(
  run: Run,
  { mode, step }: { mode: "train" | "val"; step: number },
  episodes: readonly Episode[],
  credit?: Credit,
): void {
  const { folder, config, plan, emit } = run;
  if (mode === "train") folder?.writeEpisodes(step, withAdvantages(episodes, credit));
  else folder?.writeEpisodes(step, episodes, "validation");
  const { plot_every, plot_dir } = config.rllm.trainer;
  const isPlotted = plot_every > 0 && step % plot_every === 0;
  if (folder && episodes.length > 0 && (mode === "val" || isPlotted)) {
    emit({ type: "samples", step, kind: mode === "val" ? "validation" : "train", rows: sampleRows(episodes) });
  }
  const { log_episodes, episode_log_dir } = config.rllm.episode_logging;
  try {
    if (log_episodes) {
      const epoch = plan.stepsPerEpoch > 0 ? Math.max(0, Math.floor((step - 1) / plan.stepsPerEpoch)) : 0;
      logEpisodes(episode_log_dir, { mode, step, epoch }, episodes);
    }
    if (folder && mode === "train" && isPlotted) {
      plotLengths(
        plot_dir ?? join(folder.path, "plots"),
        step,
        replyLengths(episodes),
        config.data.max_response_length,
      );
    }
  } catch (error) {
    const where = log_episodes ? episode_log_dir : relative(process.cwd(), folder?.path ?? ".");
    emit({ type: "warning", text: `step ${step}: episode files or plots could not be written to ${where}: ${error}` });
  }
}

/** With what each trajectory counted for, so that people can see it. */
function withAdvantages(episodes: readonly Episode[], credit: Credit | undefined): readonly Episode[] {
  if (credit === undefined) return episodes;
  const found = new Map<Trajectory, MemberAdvantage>();
  credit.groups.forEach(({ members }, group) => {
    members.forEach(({ trajectory }, member) => {
      found.set(trajectory, credit.advantages[group]![member]!);
    });
  });
  const kept = (trajectory: Trajectory) => ({ ...trajectory, advantage: found.get(trajectory) });
  return episodes.map((episode) => ({ ...episode, trajectories: episode.trajectories.map(kept) }));
}

function replyLengths(episodes: readonly Episode[]): number[] {
  return episodes.flatMap(({ trajectories }) =>
    trajectories.flatMap(({ steps }) => steps.map(({ tokens }) => tokens.length)),
  );
}

/** Stops a run whose rollouts fail: it would train on nothing and measure nothing. */
import { setTimeout as sleep } from "node:timers/promises";
import { RunError } from "../errors.ts";
import { userFrames } from "../stack-frames.ts";
import type { Episode } from "../trajectories/types.ts";
import { keepEpisodes } from "./keep-episodes.ts";
import type { Run } from "./run.ts";

/** An outage of this length, e.g. of a reward server, does not end a run. */
const outageSeconds = 60;
/** Doubled after each attempt. */
const firstPauseSeconds = 5;
/** Steps in a row, in each of which more than half of the rollouts failed, that end a run. */
const mostFailingSteps = 3;

interface Collected {
  mode: "train" | "val";
  step: number;
}

export interface Outage {
  /**
   * Whether all of these rollouts failed, after a pause. Another attempt may follow then.
   * @throws RunError when they have failed for longer than an outage lasts
   */
  lasts(collected: Collected, episodes: readonly Episode[]): Promise<boolean>;
}

/** @param stops false: failures are returned in the end, for a caller that reports them */
export function watchOutage(run: Run, stops = true): Outage {
  const { emit, signal, stopRequested } = run;
  let seconds = 0;
  let pause = firstPauseSeconds;
  return {
    async lasts({ mode, step }, episodes) {
      const failed = episodes.filter(isLost);
      if (episodes.length === 0 || failed.length < episodes.length) {
        seconds = 0;
        pause = firstPauseSeconds;
        return false;
      }
      const what =
        mode === "train" ? `step ${step}` : step === 0 ? "the validation" : `the validation after step ${step}`;
      const text = `all ${failed.length} rollouts of ${what} failed, ${describe(failed)}`;
      seconds += failed.reduce((least, episode) => Math.min(least, episode.seconds), Number.POSITIVE_INFINITY);
      if (seconds >= outageSeconds || !mayPass(failed) || stopRequested()) {
        if (!stops) return false;
        keepEpisodes(run, { mode, step }, episodes);
        throw stopped(text, failed);
      }
      emit({ type: "warning", text: `${text}; trying again in ${pause} s` });
      for (let left = pause; left > 0 && !stopRequested(); left--) await sleep(1000, undefined, { signal });
      seconds += pause;
      pause *= 2;
      return true;
    },
  };
}

/**
 * A step counts as failing when more than half of its rollouts have no reward, or when all of them threw and
 * `rllm.workflow.on_agent_error` gave them one. Replies that an agent could not use do not count: a model may learn.
 *
 * @throws RunError when this step is failing and so were the ones before it, or all of the last step failed
 */
export function noteFailingStep({ progress, plan }: Run, episodes: readonly Episode[]): void {
  const failed = episodes.filter(({ failure }) => failure !== undefined && failure.kind !== "model");
  const allFailed = failed.length === episodes.length && episodes.length > 0;
  const failing = allFailed || failed.filter(isLost).length > episodes.length / 2;
  progress.failingSteps = failing ? (progress.failingSteps ?? 0) + 1 : 0;
  const last = allFailed && progress.step === plan.totalSteps;
  if (!last && progress.failingSteps < mostFailingSteps) return;
  const share = `${failed.length} of ${episodes.length} in step ${progress.step}`;
  throw stopped(
    `most rollouts failed, ${progress.failingSteps} steps in a row (${share}), ${describe(failed)}`,
    failed,
  );
}

/** Failed, and with no reward that could be trained on. */
const isLost = ({ failure, trajectories }: Episode) =>
  failure !== undefined && trajectories.every(({ reward }) => reward === null);

/** Errors of the agent's or the reward's own code do not pass with time. */
function mayPass(failed: readonly Episode[]): boolean {
  const { kind, boundary } = mostFrequent(failed)[0]!.failure!;
  return boundary === "timeout" || kind === "infrastructure";
}

/** The failures that occurred most; numbers in their messages, such as ports and times, do not tell them apart. */
function mostFrequent(failed: readonly Episode[]): readonly Episode[] {
  const groups = new Map<string, Episode[]>();
  for (const episode of failed) {
    const key = `${episode.failure?.boundary}: ${episode.failure?.message.replace(/\d+/g, "#")}`;
    groups.set(key, [...(groups.get(key) ?? []), episode]);
  }
  return [...groups.values()].reduce((most, group) => (group.length > most.length ? group : most));
}

function describe(failed: readonly Episode[]): string {
  const most = mostFrequent(failed);
  const { failure, rollout, taskId } = most[0]!;
  const frames = userFrames(failure?.stack);
  return (
    `most often (${most.length} of ${failed.length}) at the boundary ${failure?.boundary}: ${failure?.message} ` +
    `(rollout ${rollout} of task ${taskId})${frames === "" ? "" : `\n${frames}`}`
  );
}

function stopped(text: string, failed: readonly Episode[]): RunError {
  const { boundary } = mostFrequent(failed)[0]!.failure!;
  const fix =
    boundary === "timeout" ? "fix what hangs, or raise its time limit" : `fix the ${boundary.replace("_", "-")}`;
  return new RunError(text, {
    hint: `${fix}; episodes/ has every failure`,
  });
}

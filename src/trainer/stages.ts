/** Several runs one after the other, each from the weights of the one before: examples, a teacher, preferences, rewards. */
import { join } from "node:path";
import { UserError } from "../base/errors.ts";
import { type Experiment, type TrainOptions, takeLaunch, withLaunch } from "./experiment.ts";
import { type RunSummary, train } from "./train.ts";

/** One run of a chain, which begins with the model of the run before it. */
export interface Stage {
  /** Also of its folder: `{folder}/{number}-{name}`. */
  name: string;
  // biome-ignore lint/suspicious/noExplicitAny: the stages learn from rows of different types
  experiment: Experiment<any>;
}

/**
 * Runs the stages in order, each with a fresh optimizer. A stage that was interrupted continues where it stopped, and one
 * that is done is not repeated, so running the script again continues the chain.
 *
 * @returns a summary of each stage that ran; fewer than the stages if one was stopped
 * @throws UserError for two stages with one name
 * @example
 * await trainStages("runs/chain", [
 *   { name: "sft", experiment: sft({ data: rows }) },
 *   { name: "rl", experiment },
 * ]);
 */
export async function trainStages(
  folder: string,
  stages: readonly Stage[],
  options: TrainOptions = {},
): Promise<RunSummary[]> {
  const twice = stages.find(({ name }, index) => stages.findIndex((other) => other.name === name) !== index);
  if (twice) throw new UserError(`two stages are named ${twice.name}`, { hint: "give each stage a name of its own" });
  const launch = takeLaunch();
  const { resume, ...given } = launch ? withLaunch(options, launch) : options;
  if (resume !== undefined) {
    throw new UserError("a chain of stages continues by itself", { hint: "run the script again without --resume" });
  }
  const runs = given.dryRun !== true && given.perform === undefined;
  const summaries: RunSummary[] = [];
  let from = given.from;
  for (const [index, { name, experiment }] of stages.entries()) {
    const run = join(folder, `${index + 1}-${name}`);
    const overrides = [...(given.overrides ?? []), `rllm.trainer.run_dir=${JSON.stringify(run)}`];
    const { from: _, ...stage } = given;
    const summary = await train(experiment, { ...stage, overrides, ...(from !== undefined && runs ? { from } : {}) });
    summaries.push(summary);
    if (summary.exitCode !== 0) {
      if (launch) process.exitCode = summary.exitCode;
      break;
    }
    from = run;
  }
  return summaries;
}

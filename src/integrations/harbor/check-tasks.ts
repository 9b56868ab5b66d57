/** Checks tasks by running them: a solution must earn the reward; an agent that does nothing, or cheats, must not. */
import { existsSync } from "node:fs";
import { join } from "node:path";
import type { Outcome } from "../../agents/types.ts";
import { HoneError } from "../../base/errors.ts";
import { findEngine } from "../containers/engine.ts";
import { replacePrograms, replaceShell, shellAgent, writeReward } from "./harbor.ts";
import { readTask, type TaskFolder, taskFolders } from "./tasks.ts";
import { runTrial, type TrialEvent, toOutcome } from "./trial.ts";

export interface CheckOptions {
  environment?: string;
  network?: "bridge" | "host";
  /** Only read the files. */
  filesOnly?: boolean;
  signal: AbortSignal;
}

export interface CheckedTask {
  name: string;
  /** Each as a sentence; none: the task is good. */
  problems: string[];
  /** The rewards of the agents that ran; null if unknown. */
  rewards: Readonly<Record<string, number | null>>;
}

const shell = (command: string) => ({ import_path: shellAgent, kwargs: { command } });

const cheats = {
  "writes the reward file": shell(writeReward),
  "replaces the verifier's programs": shell(replacePrograms),
  "replaces the shell": shell(replaceShell),
};

/** Yields each task when it is checked. */
export async function* checkTasks(folder: string, options: CheckOptions): AsyncGenerator<CheckedTask> {
  const environment = options.environment ?? (options.filesOnly ? "" : (await findEngine()).name);
  for (const path of taskFolders(folder)) {
    const task = readTask(path);
    if (task.problems.length > 0 || options.filesOnly) {
      yield { name: task.name, problems: task.problems, rewards: {} };
    } else yield await tryTask(task, { ...options, environment });
  }
}

async function tryTask(task: TaskFolder, options: CheckOptions & { environment: string }): Promise<CheckedTask> {
  const problems: string[] = [];
  const rewards: Record<string, number | null> = {};
  const earn = async (who: string, agent: Record<string, unknown>, isCheat = false): Promise<number | null> => {
    const { reward, explanation } = await outcomeOf(task.path, agent, options).catch((error: Error): Outcome => {
      options.signal.throwIfAborted();
      // A cheat may break its own shell.
      if (!isCheat || error instanceof HoneError) problems.push(`${who}: ${error.message}`);
      return { reward: null };
    });
    // A verifier that a cheat has broken does not pay.
    if (explanation !== undefined && reward === null && !isCheat) problems.push(`${who}: ${explanation}`);
    rewards[who] = reward;
    return reward;
  };
  const hasSolution = existsSync(join(task.path, "solution", "solve.sh")) || Array.isArray(task.config.steps);
  const nothing = await earn("nop", { name: "nop" });
  const solved = hasSolution ? await earn("oracle", { name: "oracle" }) : null;
  if (!hasSolution) problems.push("solution/solve.sh is missing, so nothing shows that the task can be solved");
  if (solved !== null && solved <= (nothing ?? 0)) problems.push(`its solution earns ${solved}`);
  if (nothing !== null && nothing > 0) problems.push(`an agent that does nothing earns ${nothing}`);
  for (const [what, agent] of Object.entries(cheats)) {
    const earned = await earn(what, agent, true);
    if (earned !== null && earned > (nothing ?? 0))
      problems.push(`can be hacked: an agent that ${what} earns ${earned}`);
  }
  return { name: task.name, problems, rewards };
}

async function outcomeOf(
  task: string,
  agent: Record<string, unknown>,
  { environment, network = "bridge", signal }: CheckOptions & { environment: string },
): Promise<Outcome> {
  const seen = new Set<TrialEvent>();
  const settings = { task, agent, environment, network, mounts: {}, guard: true, mountedAgent: false, more: {} };
  const listener = { event: (event: TrialEvent) => void seen.add(event), log: () => {} };
  const trial = await runTrial(settings, listener, signal, () => {});
  return toOutcome(trial, seen, () => {});
}

/** `hone eval`: measures models and checkpoints on the validation tasks of a script's experiment, or on Harbor's tasks. */
import type { Command } from "commander";
import { UserError } from "../../base/errors.ts";
import type { EvaluationRequest, Launch } from "../../trainer/experiment.ts";
import { checkpointNames, configFiles, overrides } from "./options.ts";
import { runScript } from "./script.ts";

interface EvalFlags {
  config?: string[];
  checkpoint?: string[];
  base?: boolean;
  output?: string;
  json?: boolean;
  harbor?: string;
  agent?: string;
  registry?: string;
}

export function register(command: Command): void {
  command
    .argument("[script]", "the experiment's TypeScript file; not with --harbor")
    .argument(...overrides)
    .addOption(configFiles())
    .option(
      "--checkpoint <folder>",
      `${checkpointNames}; repeat it to compare checkpoints with the first`,
      (path: string, others: string[] = []) => [...others, path],
    )
    .option("--base", "measure the base model first; the default without --checkpoint")
    .option("--harbor <tasks>", "measure a coding agent on a folder or a data set (name@version) of Harbor's tasks")
    .option("--agent <name>", "with --harbor: one of Harbor's agents (default: pi)")
    .option("--registry <file>", "with --harbor: a registry file of Harbor, or its address")
    .option("-o, --output <folder>", "where to write the results (default: runs/eval-{experiment}-{date})")
    .option("--json", "print the summary as JSON, and progress to standard error")
    .addHelpText("after", help)
    .action(evalCommand);
}

const help = `
The results are a folder that \`hone view\` reads: summary.json has means,
standard errors and paired comparisons; tasks.jsonl of each model has the row,
reply, reward and reason of every rollout. A checkpoint is measured with the
settings of its run, the base model with those of the first checkpoint;
key=value pairs win over both.

Exit codes:
  0    measured
  1    the run failed, or a model has no known reward
  2    a mistake in the command
  130  stopped

Examples:
  hone eval ./train.ts
  hone eval ./train.ts --checkpoint runs/latest --base
  hone eval ./train.ts --checkpoint runs/a --checkpoint runs/b
  hone eval --harbor terminal-bench@2.0 --agent pi --checkpoint runs/latest --base
  hone eval ./train.ts --checkpoint runs/latest/checkpoints/step-000010 \\
    rllm.rollout.n_val=4 --json`;

async function evalCommand(script: string | undefined, overrides: string[], flags: EvalFlags): Promise<void> {
  const { config: files = [], checkpoint: checkpoints = [], base = false, output, json = false } = flags;
  const candidates = base || checkpoints.length === 0 ? [null, ...checkpoints] : checkpoints;
  const evaluate: EvaluationRequest = { candidates, json };
  if (output !== undefined) evaluate.output = output;
  const { harbor: tasks, agent, registry } = flags;
  if (tasks !== undefined) {
    // Without a script, the first argument is a setting.
    const settings = [...(script === undefined ? [] : [script]), ...overrides];
    return evalHarbor(tasks, { agent, registry }, { overrides: settings, files, evaluate });
  }
  if (agent !== undefined || registry !== undefined)
    throw new UserError(`--${agent === undefined ? "registry" : "agent"} requires --harbor`);
  if (script === undefined) throw new UserError("name the script of an experiment, or tasks with --harbor");
  await runScript(script, { overrides, files, evaluate });
}

interface HarborFlags {
  agent: string | undefined;
  registry: string | undefined;
}

async function evalHarbor(name: string, { agent = "pi", registry }: HarborFlags, launch: Launch): Promise<void> {
  const [first] = launch.overrides ?? [];
  if (first !== undefined && !first.includes("=")) {
    throw new UserError(`--harbor measures without a script, but ${first} is given`, {
      hint: "leave one of the two out",
    });
  }
  const { harborTasks } = await import("../../integrations/harbor/index.ts");
  const { defineExperiment } = await import("../../trainer/experiment.ts");
  const { train } = await import("../../trainer/train.ts");
  const tasks = harborTasks(name, registry === undefined ? {} : { registry });
  const experiment_name = `harbor-${agent}-${tasks.name}`.replace(/[^\w.-]+/g, "-");
  const config = { rllm: { trainer: { experiment_name } } };
  const experiment = defineExperiment({ train: tasks, validation: tasks, config });
  // Stronger than the settings of a checkpoint's run, whose workflow may be its script's.
  const runtime = ["enabled=true", "backend=harbor", `harbor.agent=${agent}`].map(
    (setting) => `rllm.remote_runtime.${setting}`,
  );
  const overrides = [...runtime, ...(launch.overrides ?? [])];
  process.exitCode = (await train(experiment, { ...launch, overrides })).exitCode;
}

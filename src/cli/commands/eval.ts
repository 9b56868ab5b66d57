/** `hone eval`: measures models and checkpoints on the validation tasks of a script's experiment. */
import type { Command } from "commander";
import type { EvaluationRequest } from "../../trainer/launch.ts";
import { checkpointNames, configFiles, overrides } from "../options.ts";
import { runScript } from "../run-script.ts";

interface EvalFlags {
  config?: string[];
  checkpoint?: string[];
  base?: boolean;
  output?: string;
  json?: boolean;
}

export function register(command: Command): void {
  command
    .argument("<script>", "the experiment's TypeScript file")
    .argument(...overrides)
    .addOption(configFiles())
    .option(
      "--checkpoint <folder>",
      `${checkpointNames}; repeat it to compare checkpoints with the first`,
      (path: string, others: string[] = []) => [...others, path],
    )
    .option("--base", "measure the base model first; the default without --checkpoint")
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
  hone eval ./train.ts --checkpoint runs/latest/checkpoints/step-000010 \\
    rllm.rollout.n_val=4 --json`;

async function evalCommand(script: string, overrides: string[], flags: EvalFlags): Promise<void> {
  const { config: files = [], checkpoint: checkpoints = [], base = false, output, json = false } = flags;
  const candidates = base || checkpoints.length === 0 ? [null, ...checkpoints] : checkpoints;
  const evaluate: EvaluationRequest = { candidates, json };
  if (output !== undefined) evaluate.output = output;
  await runScript(script, { overrides, files, evaluate });
}

/** `hone tasks`: checks Harbor tasks, and removes their images. */
import { type Command, Option } from "commander";
import { printable } from "../../base/text.ts";
import { findEngine, removeImages } from "../../integrations/containers/engine.ts";
import { checkTasks } from "../../integrations/harbor/check-tasks.ts";

interface CheckFlags {
  environment?: string;
  network?: "bridge" | "host";
  filesOnly?: boolean;
  json?: boolean;
}

export function register(tasks: Command): void {
  tasks
    .command("check")
    .description("Check a folder of Harbor tasks: their files, and what earns their rewards.")
    .argument("<folder>", "a task, or a folder of tasks")
    .option("--environment <name>", "docker, podman, or another environment of Harbor (default: docker, else podman)")
    .addOption(new Option("--network <name>", "the containers' network").choices(["bridge", "host"]).default("bridge"))
    .option("--files-only", "do not run the tasks")
    .option("--json", "print one JSON object per task")
    .addHelpText(
      "after",
      `
Each task is run five times: its own solution must earn the reward. An agent
that does nothing, one that writes the reward file in the background, and two
that replace the programs of the verifier or its shell must not. The exit code
is 1 if a task has a problem.`,
    )
    .action(checkCommand);
  tasks.command("clean").description("Remove the images that Hone has built for tasks.").action(cleanCommand);
}

async function checkCommand(folder: string, { json, ...flags }: CheckFlags): Promise<void> {
  const stop = new AbortController();
  process.once("SIGINT", () => stop.abort(new Error("interrupted")));
  let bad = 0;
  let count = 0;
  for await (const task of checkTasks(folder, { ...flags, signal: stop.signal })) {
    count++;
    if (task.problems.length > 0) bad++;
    if (json) process.stdout.write(`${JSON.stringify(task)}\n`);
    else {
      const rewards = Object.entries(task.rewards).map(([who, reward]) => `${who} ${reward ?? "?"}`);
      process.stdout.write(`${printable([task.name, ...rewards].join(" | "))}\n`);
      for (const problem of task.problems) process.stdout.write(`  ${printable(problem)}\n`);
    }
  }
  if (!json) process.stdout.write(`${count} tasks, ${bad} with problems\n`);
  if (bad > 0) process.exitCode = 1;
}

async function cleanCommand(): Promise<void> {
  const engine = await findEngine();
  process.stdout.write(`removed ${await removeImages(engine)} images of ${engine.name}\n`);
}

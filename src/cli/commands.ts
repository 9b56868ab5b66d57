/** The commands of `hone`. Each has a file with its options, help and work, loaded only if the command is named. */
import { readFileSync } from "node:fs";
import { Command } from "commander";

type Load = () => Promise<{ register: (command: Command) => void }>;

const commands: readonly (readonly [name: string, description: string, Load])[] = [
  ["train", "Train a model on the experiment of a TypeScript file.", () => import("./commands/train.ts")],
  ["score", "Try an experiment's tasks and reward with a hosted model.", () => import("./commands/score.ts")],
  ["sft", "Fine-tune a model on the rows of a file.", () => import("./commands/sft.ts")],
  ["dpo", "Train a model on the preference pairs of a file.", () => import("./commands/dpo.ts")],
  ["eval", "Measure models and checkpoints, and compare them.", () => import("./commands/eval.ts")],
  ["lightrft", "Train with LightRFT's flags.", () => import("./commands/lightrft.ts")],
  ["view", "Browse a run: rewards, episodes, tokens colored by advantage.", () => import("./commands/view.ts")],
  ["chat", "Chat with a model or a checkpoint.", () => import("./commands/chat.ts")],
  ["serve", "Serve models for training and sampling with Tinker's SDK.", () => import("./commands/serve.ts")],
  ["export", "Write a checkpoint as an adapter or a whole model.", () => import("./commands/export.ts")],
  ["doctor", "Check this machine, train on one batch, report problems.", () => import("./commands/doctor.ts")],
  ["gateway", "Serve a model to OpenAI's and Anthropic's clients.", () => import("./commands/gateway.ts")],
  ["traces", "List, show, import and export recorded model calls.", () => import("./commands/traces.ts")],
  ["import", "Write an experiment of a job of OpenAI's fine-tuning.", () => import("./commands/import.ts")],
  ["tasks", "Check Harbor tasks, and remove their images.", () => import("./commands/tasks.ts")],
  ["episodes", "Write a run's episodes as rows and pairs to learn from.", () => import("./commands/episodes.ts")],
  ["config", "Print, explain and compare configurations.", () => import("./commands/config.ts")],
];

export const commandNames = commands.map(([name]) => name);

const version = JSON.parse(readFileSync(new URL("../../package.json", import.meta.url), "utf8")).version as string;

/** @param words the command line; the commands that it names have their options and help */
export async function program(words: readonly string[]): Promise<Command> {
  const hone = new Command("hone")
    .description("Reinforcement-learning post-training of language models and agents, from TypeScript.")
    .version(version)
    .showHelpAfterError("(add --help for usage)")
    .addHelpText(
      "after",
      `
Examples:
  hone train ./train.ts                       train a model on your own tasks
  hone train ./train.ts --resume runs/latest  continue the newest run
  hone view                                   browse the newest run
  hone doctor                                 find out what is wrong, and how to fix it

\`hone <command> --help\` lists a command's options.`,
    );
  for (const [name, description, load] of commands) {
    const command = hone.command(name).description(description);
    if (words.includes(name)) (await load()).register(command);
  }
  return hone;
}

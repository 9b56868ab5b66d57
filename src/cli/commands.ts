/** The commands of `hone`. A command's own file has its options, help and work; it is loaded only if the command is named. */
import { readFileSync } from "node:fs";
import { Command } from "commander";

interface Listed {
  name: string;
  description: string;
  load: () => Promise<{ register: (command: Command) => void }>;
}

const commands: readonly Listed[] = [
  {
    name: "train",
    description: "Train a model on the experiment of a TypeScript file.",
    load: () => import("./commands/train.ts"),
  },
  {
    name: "eval",
    description: "Measure models and checkpoints on an experiment's validation tasks and compare them.",
    load: () => import("./commands/eval.ts"),
  },
  {
    name: "lightrft",
    description: "Train with LightRFT's flags.",
    load: () => import("./commands/lightrft.ts"),
  },
  {
    name: "view",
    description: "Browse a run: rewards, episodes turn by turn, tokens colored by advantage.",
    load: () => import("./commands/view.ts"),
  },
  {
    name: "chat",
    description: "Chat with a model or a checkpoint.",
    load: () => import("./commands/chat.ts"),
  },
  {
    name: "serve",
    description: "Serve models to clients of Tinker's SDK, for training and sampling.",
    load: () => import("./commands/serve.ts"),
  },
  {
    name: "export",
    description: "Write a checkpoint's weights as files that other programs load.",
    load: () => import("./commands/export.ts"),
  },
  {
    name: "doctor",
    description: "Check versions, devices and memory, train on one batch, and report what is wrong.",
    load: () => import("./commands/doctor.ts"),
  },
  {
    name: "gateway",
    description: "Serve a model to OpenAI's and Anthropic's clients and record every call with its tokens.",
    load: () => import("./commands/gateway.ts"),
  },
  {
    name: "traces",
    description: "List, show and export the model calls that the gateway recorded.",
    load: () => import("./commands/traces.ts"),
  },
  {
    name: "config",
    description: "Print the composed configuration, explain its keys, or compare two configurations.",
    load: () => import("./commands/config.ts"),
  },
];

export const commandNames = commands.map(({ name }) => name);

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
  for (const { name, description, load } of commands) {
    const command = hone.command(name).description(description);
    if (words.includes(name)) (await load()).register(command);
  }
  return hone;
}

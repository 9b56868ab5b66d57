/**
 * The command line of `hone`: the list of commands, each loaded only if it is named, and one run from words to exit
 * code.
 */
import { readFileSync } from "node:fs";
import { Command, CommanderError } from "commander";
import { endedEarly, isWatched } from "../../trainer/failures.ts";
import { reportError, stopWithParent } from "./report-error.ts";

// The commands of `hone`. Each has a file with its options, help and work, loaded only if the command is named.

type Load = () => Promise<{ register: (command: Command) => void }>;

const commands: readonly (readonly [name: string, description: string, Load])[] = [
  ["train", "Train a model on the experiment of a TypeScript file.", () => import("./train.ts")],
  ["score", "Try an experiment's tasks and reward with a hosted model.", () => import("./score.ts")],
  [
    "sft",
    "Fine-tune a model on the rows of a file.",
    async () => ({ register: (await import("./sft.ts")).registerSft }),
  ],
  [
    "dpo",
    "Train a model on the preference pairs of a file.",
    async () => ({ register: (await import("./sft.ts")).registerDpo }),
  ],
  ["eval", "Measure models and checkpoints, and compare them.", () => import("./eval.ts")],
  ["lightrft", "Train with LightRFT's flags.", () => import("./lightrft.ts")],
  ["view", "Browse a run: rewards, episodes, tokens colored by advantage.", () => import("./view.ts")],
  ["chat", "Chat with a model or a checkpoint.", () => import("./chat.ts")],
  ["serve", "Serve models for training and sampling with Tinker's SDK.", () => import("./serve.ts")],
  ["export", "Write a checkpoint as an adapter or a whole model.", () => import("./export.ts")],
  ["push", "Upload an export to the Hugging Face hub.", () => import("./push.ts")],
  ["doctor", "Check this machine, train on one batch, report problems.", () => import("./doctor.ts")],
  ["gateway", "Serve a model to OpenAI's and Anthropic's clients.", () => import("./gateway.ts")],
  ["traces", "List, show, import and export recorded model calls.", () => import("./traces.ts")],
  ["import", "Write an experiment of a job of OpenAI's fine-tuning.", () => import("./import.ts")],
  ["tasks", "Check Harbor tasks, and remove their images.", () => import("./tasks.ts")],
  ["episodes", "Write a run's episodes as rows and pairs to learn from.", () => import("./episodes.ts")],
  ["config", "Print, explain and compare configurations.", () => import("./config.ts")],
];

export const commandNames = commands.map(([name]) => name);

const version = JSON.parse(readFileSync(new URL("../../../package.json", import.meta.url), "utf8")).version as string;

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

// Runs one command line: from its words to its exit code.

/** Makes every command throw instead of exiting, so that a mistyped one exits with 2. */
function throwInsteadOfExiting(command: Command): Command {
  for (const child of command.exitOverride().commands) throwInsteadOfExiting(child);
  return command;
}

/** Hydra's short flags of two letters, which the parser does not support. */
const longFlags = new Map([
  ["-cp", "--config-path"],
  ["-cn", "--config-name"],
  ["-cd", "--config-dir"],
]);

/**
 * @param words what follows `hone`
 * @returns 0; 2 for a user's mistake and 1 for a failure, both reported on standard error; 130 after Ctrl-C
 */
export async function runCommandLine(words: readonly string[]): Promise<number> {
  try {
    const known = words.map((word) => longFlags.get(word) ?? word);
    await throwInsteadOfExiting(await program(known)).parseAsync(known, { from: "user" });
    return Number(process.exitCode ?? 0);
  } catch (error) {
    // The parser has printed its message. Help and version are not mistakes.
    if (error instanceof CommanderError) return error.exitCode === 0 ? 0 : 2;
    return reportError(error);
  }
}

// The process of the `hone` command.

let done = false;

// The reader of a pipe, such as `head`, has closed it.
process.stdout.on("error", (error: NodeJS.ErrnoException) => {
  if (error.code !== "EPIPE") throw error;
  done = true;
  process.exit();
});

// An open run handles these errors itself.
process.on("uncaughtException", (error) => {
  if (isWatched()) return;
  done = true;
  process.exit(reportError(error));
});
process.on("exit", (code) => {
  if (!done && !isWatched()) process.exitCode = endedEarly(code);
});

stopWithParent();
process.exitCode = await runCommandLine(process.argv.slice(2));
done = true;

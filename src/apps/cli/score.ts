/** `hone score`: tries an experiment's tasks and reward with a hosted model, without Python and without training. */
import { type Command, InvalidArgumentError } from "commander";
import { RunError } from "../../base/errors.ts";
import { printableLines } from "../../base/text.ts";
import { openProvider } from "../score/providers.ts";
import { reportScore, score } from "../score/score.ts";
import { configFiles, overrides, wholeNumber } from "./options.ts";
import { showStatus } from "./report-error.ts";
import { runScript } from "./script.ts";

interface ScoreFlags {
  model: string;
  keyVariable?: string;
  tasks: number;
  rollouts: number;
  concurrency: number;
  price?: { input: number; output: number };
  output?: string;
  config?: string[];
  json?: boolean;
}

export function register(command: Command): void {
  command
    .argument("<script>", "the experiment's TypeScript file")
    .argument(...overrides)
    .requiredOption(
      "--model <model>",
      "openai:NAME, anthropic:NAME, or the URL of an OpenAI-compatible server, URL#NAME",
    )
    .option(
      "--key-variable <name>",
      "the environment variable with the key (default: OPENAI_API_KEY, ANTHROPIC_API_KEY; none for a URL)",
    )
    .option("--tasks <number>", "tasks, taken from the whole training dataset", wholeNumber(1), 8)
    .option("--rollouts <number>", "rollouts of each task", wholeNumber(1), 4)
    .option("--concurrency <number>", "rollouts at the same time", wholeNumber(1), 8)
    .option("--price <input,output>", "dollars for a million tokens, for the cost", parsePrice)
    .option("-o, --output <folder>", "the run folder (default: runs/score-{experiment}-{date})")
    .addOption(configFiles())
    .option("--json", "print the summary as JSON")
    .addHelpText("after", help)
    .action(scoreCommand);
}

const help = `
The model answers through the same workflow as in training, also for agents with
a client of their own. Its replies are not cut off at data.max_response_length.
The messages of the tasks are sent to the provider.

Examples:
  hone score ./train.ts --model openai:gpt-5-mini
  hone score ./train.ts --model anthropic:claude-haiku-4-5 --price 1,5
  hone score ./train.ts --model http://127.0.0.1:8000/v1 --tasks 32`;

function parsePrice(text: string): { input: number; output: number } {
  const [input = Number.NaN, output = Number.NaN, ...more] = text
    .split(",")
    .map((part) => (part.trim() === "" ? Number.NaN : Number(part)));
  if (more.length === 0 && input >= 0 && output >= 0) return { input, output };
  throw new InvalidArgumentError("It must be two numbers, for input and output: 0.25,2.");
}

async function scoreCommand(script: string, overrides: string[], flags: ScoreFlags): Promise<void> {
  const { config: files = [], json = false, model, keyVariable, ...options } = flags;
  const provider = await openProvider(model, { keyVariable });
  const status = showStatus();
  const warn = (text: string) => process.stderr.write(`warning: ${printableLines(text)}\n`);
  await runScript(script, {
    overrides,
    files,
    async perform(experiment, composed) {
      const onEpisode = (ended: number, all: number) =>
        process.stderr.isTTY && status.say(`${ended} of ${all} rollouts`);
      const stop = new AbortController();
      for (const name of ["SIGINT", "SIGTERM"] as const)
        process.once(name, () => stop.abort(new RunError("interrupted")));
      const { signal } = stop;
      const found = await score(experiment, composed, { ...options, provider, warn, onEpisode, signal }).finally(
        status.end,
      );
      const lines = json ? [JSON.stringify(found)] : reportScore(found).map(printableLines);
      process.stdout.write(`${lines.join("\n")}\n`);
      return found.reward === null || found.stopped !== null ? 1 : 0;
    },
  });
}

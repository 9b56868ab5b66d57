/** `hone episodes`: writes chosen episodes of a run or an evaluation as data for `hone sft` and `hone dpo`, or as ATIF. */
import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { type Command, InvalidArgumentError, Option } from "commander";
import { UserError } from "../../errors.ts";
import { printableJson } from "../../printable.ts";
import {
  episodeKinds,
  type Selected,
  type Selection,
  selectDocuments,
  selections,
  selectPairs,
  selectRows,
} from "../../supervised/select-episodes.ts";
import { wholeNumber } from "../options.ts";

interface ExportFlags extends Omit<Selection, "kind"> {
  kind: Selection["kind"];
  as: keyof typeof forms;
  output?: string;
}

const forms = { sft: selectRows, pairs: selectPairs, atif: selectDocuments };

export function register(episodes: Command): void {
  episodes
    .command("export")
    .description("Write chosen episodes: rows for hone sft, pairs for hone dpo, or ATIF documents.")
    .argument("<folder>", "a run, or the results of hone eval")
    .option("--filter <condition>", 'only tasks that match, e.g. "0 < avg < 1"')
    .addOption(
      new Option("--select <which>", "of each task: best (highest reward), correct, shortest (of the correct) or all")
        .choices(selections)
        .default("correct"),
    )
    .option(
      "--max-per-task <count>",
      "at most this many of each task (default: 1 of best and shortest)",
      wholeNumber(1),
    )
    .option("--dedup", "leave out equal conversations of a task")
    .option("--role <name>", "only trajectories of this role")
    .addOption(
      new Option("--kind <which>", "episodes of training steps, of validations, or both")
        .choices(episodeKinds)
        .default("train"),
    )
    .addOption(
      new Option(
        "--as <form>",
        "sft (conversations), pairs (the best against the worst of each task) or atif (Harbor's trajectories)",
      )
        .choices(Object.keys(forms))
        .default("sft"),
    )
    .option(
      "--val-fraction <share>",
      "also write this share of the tasks to a second place, OUTPUT with -val",
      fraction,
    )
    .option("-o, --output <path>", "a file of JSON lines; of atif, a folder of JSON files (default: standard output)")
    .addHelpText("after", help)
    .action(exportCommand);
}

const help = `
A condition compares avg, best, worst, n, n_correct, solved and pass@K of a
task's episodes: "n_correct >= 1 and avg < 0.9". Episodes without a reward
do not count.

Examples:
  hone episodes export runs/latest --select correct --max-per-task 2 -o good.jsonl
  hone episodes export runs/latest --filter "0 < avg < 1" --as pairs -o pairs.jsonl
  hone episodes export runs/eval-latest --kind validation --select best -o best.jsonl
  hone episodes export runs/latest --as atif --select all -o trajectories
  hone sft good.jsonl --from runs/latest`;

function fraction(text: string): number {
  const value = Number(text);
  if (text.trim() !== "" && value >= 0 && value < 1) return value;
  throw new InvalidArgumentError("It must be a number from 0 to below 1.");
}

function exportCommand(folder: string, { as, output, ...selection }: ExportFlags): void {
  if (selection.valFraction && output === undefined) {
    throw new UserError("--val-fraction writes to a second place, so it needs --output");
  }
  const { train, validation, counts } = forms[as](folder, selection);
  const write = as === "atif" ? writeFolder : writeLines;
  const written = [write(train, output)];
  if (output !== undefined && selection.valFraction)
    written.push(write(validation, output.replace(/(\.[^./]*)?$/, "-val$1")));
  process.stderr.write(`${[...written, describe(counts)].filter((line) => line !== "").join("\n")}\n`);
}

const toLine = (row: unknown) => `${printableJson(JSON.stringify(row))}\n`;

function writeLines(rows: readonly unknown[], output: string | undefined): string {
  const lines = rows.map(toLine).join("");
  if (output === undefined) {
    process.stdout.write(lines);
    return "";
  }
  create(output, () => writeFileSync(output, lines, { flag: "wx" }));
  return `${rows.length} lines written to ${output}`;
}

/** Harbor's programs read one document from a file. The names are numbers, because a task's name may be any text. */
function writeFolder(documents: readonly unknown[], output: string | undefined): string {
  if (output === undefined) return writeLines(documents, output);
  create(output, () => {
    mkdirSync(output);
    for (const [index, document] of documents.entries()) {
      writeFileSync(join(output, `${String(index + 1).padStart(6, "0")}.json`), toLine(document));
    }
  });
  return `${documents.length} files written to ${output}`;
}

function create(output: string, write: () => void): void {
  try {
    write();
  } catch (error) {
    const { code, message } = error as NodeJS.ErrnoException;
    if (code === "EEXIST") throw new UserError(`${output} already exists`, { hint: "name a new one" });
    throw new UserError(`${output} cannot be written: ${message}`, { cause: error });
  }
}

function describe({ episodes, tasks, ...left }: Selected["counts"]): string {
  const reasons = {
    unknown: "episodes without a reward",
    filtered: "tasks that do not match",
    repeated: "equal conversations",
    withoutMessages: "episodes without a conversation",
    damaged: "lines that cannot be read",
  };
  const parts = Object.entries(reasons).flatMap(([name, what]) => {
    const count = left[name as keyof typeof left];
    return count > 0 ? [`${count} ${what}`] : [];
  });
  return `${episodes} episodes of ${tasks} tasks${parts.length > 0 ? `; left out: ${parts.join(", ")}` : ""}`;
}

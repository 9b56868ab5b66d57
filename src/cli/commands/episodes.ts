/** `hone episodes`: writes chosen episodes of a run or an evaluation as data for `hone sft` and `hone dpo`, or as ATIF. */
import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { type Command, Option } from "commander";
import { UserError } from "../../errors.ts";
import { printableJson } from "../../printable.ts";
import {
  episodeKinds,
  type Selection,
  selectDocuments,
  selectPairs,
  selectRows,
} from "../../supervised/select-episodes.ts";
import { choiceOptions, conditionHelp, describeCounts, heldOutput } from "../choice-options.ts";

interface ExportFlags extends Selection {
  as: keyof typeof forms;
  output?: string;
}

const forms = { sft: selectRows, pairs: selectPairs, atif: selectDocuments };

export function register(episodes: Command): void {
  const command = episodes
    .command("export")
    .description("Write chosen episodes: rows for hone sft, pairs for hone dpo, or ATIF documents.")
    .argument("<folder>", "a run, or the results of hone eval");
  choiceOptions(command, "correct")
    .option("--role <name>", "only trajectories of this role")
    .addOption(
      new Option(
        "--kind <which>",
        "episodes of training steps, of validations, or all (default: train; of hone eval's results, theirs)",
      ).choices(episodeKinds),
    )
    .addOption(
      new Option(
        "--as <form>",
        "sft (conversations), pairs (the best against the worst of each task) or atif (Harbor's trajectories)",
      )
        .choices(Object.keys(forms))
        .default("sft"),
    )
    .option("-o, --output <path>", "a file of JSON lines; of atif, a folder of JSON files (default: standard output)")
    .addHelpText("after", help)
    .action(exportCommand);
}

const help = `${conditionHelp("episodes")}

Examples:
  hone episodes export runs/latest --select correct --max-per-task 2 -o good.jsonl
  hone episodes export runs/latest --filter "0 < avg < 1" --as pairs -o pairs.jsonl
  hone episodes export runs/eval-latest --select best -o best.jsonl
  hone episodes export runs/latest --as atif --select all -o trajectories
  hone sft good.jsonl --from runs/latest`;

function exportCommand(folder: string, { as, output, ...selection }: ExportFlags): void {
  if (selection.valFraction && output === undefined) {
    throw new UserError("--val-fraction writes to a second place, so it needs --output");
  }
  const { train, validation, counts, damaged } = forms[as](folder, selection);
  const write = as === "atif" ? writeFolder : writeLines;
  const written = [write(train, output)];
  if (output !== undefined && selection.valFraction) written.push(write(validation, heldOutput(output)));
  process.stderr.write(
    `${[...written, describeCounts({ ...counts, damaged }, "episodes")].filter((line) => line !== "").join("\n")}\n`,
  );
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

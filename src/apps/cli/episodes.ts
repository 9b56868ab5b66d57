/** `hone episodes`: writes chosen episodes of a run or an evaluation as data for `hone sft` and `hone dpo`, or as ATIF. */
import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { type Command, Option } from "commander";
import { episodeKinds, type Selection, selectDocuments, selectPairs, selectRows } from "../../supervised/select.ts";
import {
  choiceOptions,
  conditionHelp,
  createOutput,
  describeCounts,
  heldOutput,
  jsonLine,
  writeLines,
} from "./options.ts";

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

const hint = "name a new one";

function exportCommand(folder: string, { as, output, ...selection }: ExportFlags): void {
  const held = heldOutput({ ...selection, output });
  const { train, validation, counts, damaged } = forms[as](folder, selection);
  const write = (rows: readonly unknown[], path: string | undefined) =>
    as === "atif" && path !== undefined ? writeFolder(rows, path) : writeLines(rows, path, hint);
  const written = [write(train, output)];
  if (held !== undefined) written.push(write(validation, held));
  process.stderr.write(
    `${[...written, describeCounts({ ...counts, damaged }, "episodes")].filter((line) => line !== "").join("\n")}\n`,
  );
}

/** Harbor's programs read one document from a file. The names are numbers, because a task's name may be any text. */
function writeFolder(documents: readonly unknown[], output: string): string {
  createOutput(output, hint, () => {
    mkdirSync(output);
    for (const [index, document] of documents.entries()) {
      writeFileSync(join(output, `${String(index + 1).padStart(6, "0")}.json`), jsonLine(document));
    }
  });
  return `${documents.length} files written to ${output}`;
}

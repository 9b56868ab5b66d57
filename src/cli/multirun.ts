/**
 * `hone train --multirun`: one run for each combination of the overrides' values, one after the other, each in a
 * process and a folder of its own, and a table of what came of them.
 */
import { spawn } from "node:child_process";
import { existsSync, readdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { stringify } from "yaml";
import { composeHydraSettings } from "../config/compose.ts";
import { expandSweep, isMistake, parseOverride } from "../config/hydra/index.ts";
import { searchPath } from "../config/hydra/search-path.ts";
import { maskOverride } from "../config/mask-override.ts";
import { shippedFolder } from "../config/shipped.ts";
import { UserError } from "../errors.ts";
import { makeFolder } from "../files/make-folder.ts";
import { readMetrics } from "../tracking/metrics-file.ts";
import { formatNumber } from "../tracking/numbers.ts";
import type { Launch } from "../trainer/launch.ts";
import type { TrainOptions } from "./train.ts";

interface MultirunOptions extends TrainOptions {
  search: NonNullable<Launch["search"]>;
}

interface RunResult {
  /** Those that differ between the runs. */
  overrides: readonly string[];
  folder: string;
  exitCode: number;
}

/** Exit code of a run that Ctrl-C stopped: the others are not started. */
const stopped = 130;

/**
 * @returns the exit code: 0 when every run ended well, else that of the first that did not
 * @throws UserError before anything starts when an override of any run is mistaken
 */
export async function multirun(script: string, overrides: string[], options: MultirunOptions): Promise<number> {
  if (options.resume !== undefined) {
    throw new UserError("--resume continues one run; it cannot stand beside --multirun", {
      hint: "resume the run in its own folder: hone train ./train.ts --resume FOLDER/0",
    });
  }
  const { search } = options;
  const folders = [...(search.configPath === undefined ? [] : [search.configPath]), ...(search.configDirs ?? [])];
  const groupOptions = (group: string) => searchPath([...folders, shippedFolder]).options(group);
  const sets = expandSweep(
    overrides.filter((text) => text !== "hydra.mode=MULTIRUN"),
    { groupOptions },
  );
  const given = sets[0]!.find((text) => keyOf(text) === "rllm.trainer.run_dir" || keyOf(text) === "hydra.run.dir");
  if (given !== undefined) {
    throw new UserError(`${given}: each run of a multirun has a folder of its own`, {
      hint: "hydra.sweep.dir=FOLDER says where these folders lie",
    });
  }
  const settings = sets.map((set) => composeHydraSettings({ ...search, files: options.config ?? [], overrides: set }));
  const varying = sets.map((set) =>
    set.filter((text, index) => sets.some((other) => other[index] !== text)).map(maskOverride),
  );
  if (options.cfg !== undefined || options.dryRun) return printEach(script, sets, varying, options);

  const root = sweepFolder(settings[0]!.sweepDir?.value as string | undefined);
  writeFileSync(
    join(root, "multirun.yaml"),
    stringify({ script, runs: varying.map((set, index) => ({ folder: String(index), overrides: set })) }),
  );
  const results: RunResult[] = [];
  for (const [index, set] of sets.entries()) {
    const folder = join(root, String(index));
    process.stderr.write(`\nrun ${index + 1} of ${sets.length}: ${varying[index]!.join(" ")}\n`);
    const exitCode = await start(script, [...set, `++rllm.trainer.run_dir=${JSON.stringify(folder)}`], options);
    results.push({ overrides: varying[index]!, folder, exitCode });
    if (exitCode === stopped) break;
  }
  process.stdout.write(`\n${resultTable(results)}\n`);
  const left = sets.length - results.length;
  if (left > 0) process.stderr.write(`stopped: ${left} of ${sets.length} runs were not started\n`);
  return results.find(({ exitCode }) => exitCode !== 0)?.exitCode ?? 0;
}

function keyOf(text: string): string | undefined {
  const parsed = parseOverride(text);
  return isMistake(parsed) ? undefined : parsed.key;
}

async function printEach(
  script: string,
  sets: readonly string[][],
  varying: readonly string[][],
  options: MultirunOptions,
): Promise<number> {
  for (const [index, set] of sets.entries()) {
    process.stdout.write(
      `${index > 0 ? "---\n" : ""}# run ${index + 1} of ${sets.length}: ${varying[index]!.join(" ")}\n`,
    );
    const exitCode = await start(script, set, options);
    if (exitCode !== 0) return exitCode;
  }
  return 0;
}

function sweepFolder(given: string | undefined): string {
  const root =
    given ?? join("runs", `multirun-${new Date().toISOString().slice(0, 19).replaceAll(":", "").replace("T", "-")}`);
  if (existsSync(root) && readdirSync(root).length > 0) {
    throw new UserError(`${root} is not empty; the folders of a multirun go into a new one`, {
      hint: "name another by hydra.sweep.dir=FOLDER",
    });
  }
  makeFolder(root);
  return root;
}

/** A process of its own, so that a failed run leaves nothing behind in the next. */
async function start(script: string, overrides: readonly string[], options: MultirunOptions): Promise<number> {
  const { search } = options;
  const flags: string[] = [
    ...(options.config ?? []).map((file) => `--config=${file}`),
    ...(options.checkpoint === undefined ? [] : [`--checkpoint=${options.checkpoint}`]),
    ...(search.configPath === undefined ? [] : [`--config-path=${search.configPath}`]),
    ...(search.configName === undefined ? [] : [`--config-name=${search.configName}`]),
    ...(search.configDirs ?? []).map((folder) => `--config-dir=${folder}`),
    ...(options.cfg === undefined ? [] : [`--cfg=${options.cfg}`, ...(options.resolve ? ["--resolve"] : [])]),
    ...(options.dryRun ? ["--dry-run"] : []),
  ];
  const main = process.argv[1]!;
  const child = spawn(process.execPath, [...process.execArgv, main, "train", script, ...overrides, ...flags], {
    stdio: "inherit",
  });
  // A Ctrl-C reaches the child by itself; this process stays to print the table.
  const wait = () => {};
  process.on("SIGINT", wait);
  try {
    return await new Promise<number>((resolve, reject) => {
      child.once("error", reject);
      child.once("close", (code) => resolve(code ?? 1));
    });
  } finally {
    process.off("SIGINT", wait);
  }
}

/** One line a run: its number, what is its own, its last figures, how it ended. */
function resultTable(results: readonly RunResult[]): string {
  const rows = results.map(({ overrides, folder, exitCode }, index) => {
    const steps = readMetrics(folder);
    const validation = readMetrics(folder, "validation").at(-1)?.metrics;
    const figure = (value: number | undefined) => (value === undefined ? "-" : formatNumber(value));
    return [
      String(index),
      overrides.join(" ") || "-",
      String(steps.at(-1)?.step ?? 0),
      figure(steps.at(-1)?.metrics["reward/mean"]),
      figure(validation?.["val/reward"]),
      exitCode === 0 ? "done" : exitCode === stopped ? "stopped" : `failed (${exitCode})`,
      folder,
    ];
  });
  const table = [["run", "overrides", "steps", "reward", "val/reward", "ended", "folder"], ...rows];
  const widths = table[0]!.map((_, column) => Math.max(...table.map((row) => row[column]!.length)));
  return table
    .map((row) =>
      row
        .map((cell, column) => cell.padEnd(widths[column]!))
        .join("  ")
        .trimEnd(),
    )
    .join("\n");
}

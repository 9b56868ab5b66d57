/** `hone view`: runs and their episodes as a page in the browser, as text, or as a report in one file. */
import { existsSync, realpathSync } from "node:fs";
import { basename, join } from "node:path";
import { type Command, Option } from "commander";
import { UserError } from "../../base/errors.ts";
import { printable } from "../../base/text.ts";
import { outColors, wantsColors } from "../../tracking/console-lines.ts";
import { newestRun } from "../../tracking/run-folder.ts";
import { exportReport } from "../view/export-report.ts";
import { builtPage, startViewer } from "../view/server.ts";
import {
  type Coloring,
  colorings,
  episodeHead,
  episodeRow,
  legend,
  openContent,
  type Row,
  type RunContent,
  rowText,
  type StepFile,
  span,
  transcript,
} from "../view/terminal.ts";
import { wholeNumber } from "./options.ts";
import { isBesideParent, openInBrowser, untilSignal } from "./report-error.ts";

export interface TextFlags {
  step?: number;
  validation?: boolean;
  episode?: string;
  /** See docs/guide/viewing.md. */
  filter?: string;
  color: Coloring;
}

/** @throws UserError if the run, step or episode does not exist */
export async function viewInTerminal(run: string, flags: TextFlags): Promise<void> {
  if (!existsSync(join(run, "metrics.jsonl")) && !existsSync(join(run, "config.yaml"))) {
    throw new UserError(`${run} is not a run folder`, {
      hint: newestRun(),
    });
  }
  const content = await openContent(run, basename(realpathSync(run)), flags.filter ?? "");
  try {
    print(textRows(content, flags));
  } finally {
    content.close();
  }
}

function textRows(content: RunContent, flags: TextFlags): Row[] {
  const width = process.stdout.columns || 100;
  const { files, fileRow } = content;
  if (flags.step === undefined && flags.episode === undefined) {
    if (flags.filter === undefined) return [...content.head(width), ...files.map(fileRow)];
    return files.flatMap((file) => [...listOf(file, content), []]);
  }
  const file = chosenFile(files, flags);
  const episodes = content.episodes(file);
  if (flags.episode === undefined) {
    return listOf(file, content);
  }
  const episode = episodes.find(({ id }) => id === flags.episode);
  if (episode === undefined) {
    const some = episodes.slice(0, 3).map(({ id }) => id);
    throw new UserError(`step ${file.step} has no episode ${flags.episode}`, {
      hint: `the first episodes are ${some.join(", ")}`,
    });
  }
  return [
    ...transcript(content.read(episode), { coloring: flags.color, width, pieces: content.pieces }),
    [],
    legend(flags.color),
  ];
}

const listOf = (file: StepFile, content: RunContent): Row[] => [
  [span(`step ${file.step}, ${file.kind}`, "1")],
  ...content.times(file),
  episodeHead,
  ...content.episodes(file).map(episodeRow),
];

function chosenFile(files: readonly StepFile[], { step, validation = false, filter }: TextFlags): StepFile {
  const kind = validation ? "validation" : "train";
  const candidates = files.filter((file) => file.kind === kind);
  const file = step === undefined ? candidates.at(-1) : candidates.find((one) => one.step === step);
  if (file !== undefined) return file;
  if (candidates.length === 0 && filter !== undefined) throw new UserError(`no ${kind} episode matches ${filter}`);
  if (candidates.length === 0) throw new UserError(`the run has stored no ${kind} episodes so far`);
  throw new UserError(`the run has no ${kind} episodes of step ${step}`, {
    hint: `steps with episodes: ${candidates.map((one) => one.step).join(", ")}`,
  });
}

function print(rows: readonly Row[]): void {
  process.stdout.write(`${rows.map((row) => rowText(row, wantsColors(process.stdout))).join("\n")}\n`);
}

interface ViewFlags extends TextFlags {
  text?: boolean;
  port?: number;
  host: string;
  token?: string;
  open: boolean;
  export?: string;
  limit: number;
}

export function register(command: Command): void {
  command
    .argument("[folder]", "a run folder, or a folder of runs; default: runs, with the newest run opened")
    .option("--port <number>", "the port to listen on; 0 takes a free one (default: 7700 if it is free)", port)
    .option("--host <address>", "the address to listen on; other machines need the token", "127.0.0.1")
    .addOption(new Option("--token <text>", "the token that other machines need").env("HONE_VIEW_TOKEN"))
    .option("--no-open", "do not open a browser")
    .option(
      "--export <file>",
      "write one HTML file with the curves and episodes of a run, which opens without a server",
    )
    .option(
      "--filter <filter>",
      "with --text, --step or --export: show only episodes that match, e.g. reward<0.2 (default: all)",
    )
    .option(
      "--limit <number>",
      "with --export: include at most this many episodes, the newest",
      wholeNumber(1, 1000),
      40,
    )
    .option("--text", "print one run as text: its reward and its steps, or with --filter the episodes that match")
    .option("--step <number>", "print the episodes of this step", wholeNumber(0))
    .option("--validation", "show validation episodes instead of training episodes")
    .option("--episode <id>", "print this episode of --step, or of the last step")
    .addOption(new Option("--color <by>", "color tokens by this").choices(colorings).default("advantage"))
    .addHelpText("after", help)
    .action((folder: string | undefined, flags: ViewFlags, self: Command) => viewCommand(folder, flags, self));
}

const port = wholeNumber(0, 65_535);

const help = `
The page shows live and finished runs. Without a terminal, and with --text,
--step or --episode, one run is printed as text.

Examples:
  hone view
  hone view runs/latest --port 8080
  hone view runs/latest --export report.html --filter 'reward<0.2'
  hone view --text --filter 'failed=true or reward<0.2'
  hone view runs/latest --step 10 --episode larger-number/3:0 --color logprob`;

async function viewCommand(folder: string | undefined, flags: ViewFlags, self: Command): Promise<void> {
  const wantsText = flags.text === true || flags.step !== undefined || flags.episode !== undefined;
  const asks = (name: string) => self.getOptionValueSource(name) === "cli";
  const wantsPage = ["port", "host", "token", "open"].filter(asks);
  if (wantsText && wantsPage.length > 0) {
    throw new UserError(
      `--${wantsPage[0] === "open" ? "no-open" : wantsPage[0]} has no effect on a view in the terminal`,
    );
  }
  if (flags.export !== undefined) {
    if (wantsText || wantsPage.length > 0)
      throw new UserError("--export writes a file and cannot be combined with other views");
    return writeReport(folder ?? join("runs", "latest"), flags.export, flags);
  }
  if (asks("limit")) throw new UserError("--limit requires --export");
  if (wantsText || (wantsPage.length === 0 && !process.stdout.isTTY)) {
    return viewInTerminal(folder ?? join("runs", "latest"), flags);
  }
  if (flags.filter !== undefined)
    throw new UserError("--filter requires --text, --step or --export; in the page, use its filter field");
  await servePage(folder, flags);
}

async function writeReport(run: string, output: string, { filter, limit }: ViewFlags): Promise<void> {
  const { episodes, total, images, imagesLeftOut, problem } = await exportReport({ run, output, filter, limit });
  const left = total > episodes ? ` of ${total}; --limit takes more` : "";
  process.stdout.write(`${printable(output)} contains ${episodes} episodes${left}\n`);
  if (problem !== undefined) process.stderr.write(`warning: ${printable(problem)}\n`);
  if (images + imagesLeftOut === 0) return;
  const large = imagesLeftOut > 0 ? `; ${imagesLeftOut} are too large for a report, or missing` : "";
  process.stdout.write(`${images} images are in it${large}\n`);
}

async function servePage(folder: string | undefined, { host, port, token, open }: ViewFlags): Promise<void> {
  const viewer = await startViewer({ path: folder ?? "runs", host, port, token });
  const url = new URL(viewer.url);
  const latest = join("runs", "latest");
  if (folder === undefined && existsSync(latest))
    url.pathname = `/runs/${encodeURIComponent(basename(realpathSync(latest)))}`;
  process.stdout.write(`${outColors.bold(`viewing ${printable(folder ?? "runs")} at ${url}`)}\n`);
  if (viewer.isEmpty) process.stdout.write("no run has begun so far; the page shows the first one when it begins\n");
  const ofRun = isBesideParent();
  const ctrlC = ofRun
    ? "Ctrl-C stops the run after its step; the viewer ends with the run"
    : "Ctrl-C stops the viewer; runs go on";
  process.stdout.write(outColors.dim(`${ctrlC}\n`));
  if (!existsSync(builtPage)) {
    process.stderr.write(
      "the page is not built (npm run build), so only the API under /api answers; --text needs no page\n",
    );
  } else if (open) openInBrowser(String(url));
  await untilSignal({ ignoreInterrupt: ofRun });
  await viewer.close();
}

/** `hone view`: runs and their episodes as a page in the browser, or in the terminal. */
import { existsSync, realpathSync } from "node:fs";
import { basename, join } from "node:path";
import { type Command, Option } from "commander";
import { outColors } from "../../colors.ts";
import { UserError } from "../../errors.ts";
import { printable } from "../../printable.ts";
import { exportReport } from "../../view/server/export-report.ts";
import { builtPage, startViewer } from "../../view/server/start-viewer.ts";
import { colorings } from "../../view/terminal/transcript.ts";
import { openInBrowser } from "../open-in-browser.ts";
import { wholeNumber } from "../options.ts";
import { isBesideParent } from "../spawn-with-parent.ts";
import { untilSignal } from "../until-signal.ts";
import { type TextFlags, viewInTerminal } from "../view-in-terminal.ts";

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
    .option("--text", "browse one run in the terminal")
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
--step or --episode, one run is shown as text. In the terminal, the arrow keys
and Enter move between steps, episodes and turns, c changes the colors, q quits.

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

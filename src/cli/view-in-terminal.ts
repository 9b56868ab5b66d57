/** A run and its episodes in the terminal, interactively or as plain text. */
import { existsSync, realpathSync } from "node:fs";
import { basename, join } from "node:path";
import { emitKeypressEvents } from "node:readline";
import { wantsColors } from "../colors.ts";
import { UserError } from "../errors.ts";
import { newestRun } from "../tracking/run-folder/run-folder.ts";
import { type BrowserContent, draw, openState, press } from "../view/terminal/browser.ts";
import { openContent } from "../view/terminal/index-content.ts";
import { type Row, rowText, span } from "../view/terminal/styled.ts";
import { episodeHead, episodeRow, type StepFile } from "../view/terminal/tables.ts";
import { type Coloring, legend, transcript } from "../view/terminal/transcript.ts";

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
    const plain =
      flags.step !== undefined || flags.episode !== undefined || !process.stdout.isTTY || !process.stdin.isTTY;
    if (plain) print(plainRows(content, flags));
    else await browse(content);
  } finally {
    content.close();
  }
}

function plainRows(content: BrowserContent, flags: TextFlags): Row[] {
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

const listOf = (file: StepFile, content: BrowserContent): Row[] => [
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

/** Shows the run on the alternate screen until the person quits. Restores the terminal even after an error. */
async function browse(content: BrowserContent): Promise<void> {
  const { stdin, stdout } = process;
  const colors = wantsColors(process.stdout);
  let state = openState(content);
  const size = () => ({ columns: stdout.columns || 80, rows: stdout.rows || 24 });
  const show = () =>
    stdout.write(
      `\x1b[H${draw(state, content, size())
        .map((row) => `${rowText(row, colors)}\x1b[K`)
        .join("\r\n")}\x1b[J`,
    );
  emitKeypressEvents(stdin);
  stdin.setRawMode(true);
  stdout.write("\x1b[?1049h\x1b[?25l");
  try {
    await new Promise<void>((resolve, reject) => {
      stdin.on("keypress", (_text, key: { name?: string; ctrl?: boolean } | undefined) => {
        try {
          if (key?.ctrl && key.name === "c") return resolve();
          const next = press(state, key?.name ?? "", content, size());
          if (next === undefined) return resolve();
          state = next;
          show();
        } catch (error) {
          reject(error);
        }
      });
      stdout.on("resize", show);
      show();
    });
  } finally {
    stdout.write("\x1b[?25h\x1b[?1049l");
    stdin.setRawMode(false);
    stdin.pause();
    stdin.removeAllListeners("keypress");
    stdout.removeListener("resize", show);
  }
}

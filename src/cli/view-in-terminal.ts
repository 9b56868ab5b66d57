/** A run and its episodes in the terminal, interactively or as plain text. */
import { existsSync, realpathSync } from "node:fs";
import { basename, join } from "node:path";
import { emitKeypressEvents } from "node:readline";
import { wantsColors } from "../colors.ts";
import { UserError } from "../errors.ts";
import { type BrowserContent, draw, openState, press } from "../tracking/view/browser.ts";
import { type EpisodeFile, episodeFiles, openPieces, readEpisodes } from "../tracking/view/kept-episodes.ts";
import { type Row, rowText, span } from "../tracking/view/styled.ts";
import { episodeHead, episodeRow, fileRows, runHead } from "../tracking/view/tables.ts";
import { type Coloring, legend, transcript } from "../tracking/view/transcript.ts";

export interface TextFlags {
  step?: number;
  validation?: boolean;
  episode?: string;
  color: Coloring;
}

/** @throws UserError if the run, step or episode does not exist */
export async function viewInTerminal(run: string, flags: TextFlags): Promise<void> {
  if (!existsSync(join(run, "metrics.jsonl")) && !existsSync(join(run, "config.yaml"))) {
    throw new UserError(`${run} is not a run folder`, {
      hint: "hone train creates one; runs/latest is the newest run",
    });
  }
  const content = openContent(run);
  const plain =
    flags.step !== undefined || flags.episode !== undefined || !process.stdout.isTTY || !process.stdin.isTTY;
  if (plain) print(plainRows(content, flags));
  else await browse(content);
}

function openContent(run: string): BrowserContent {
  const name = basename(realpathSync(run));
  const read = new Map<string, ReturnType<typeof readEpisodes>>();
  return {
    head: (width) => runHead(run, name, Math.min(width, 100)),
    files: episodeFiles(run),
    fileRow: fileRows(run),
    episodes: (file) => {
      const found = read.get(file.path) ?? readEpisodes(file);
      read.clear(); // one step at a time: episodes are large
      read.set(file.path, found);
      return found;
    },
    pieces: openPieces(run),
  };
}

function plainRows(content: BrowserContent, flags: TextFlags): Row[] {
  const width = process.stdout.columns ?? 100;
  const { files, fileRow } = content;
  if (flags.step === undefined && flags.episode === undefined) {
    return [...content.head(width), ...files.map(fileRow)];
  }
  const file = chosenFile(files, flags);
  const episodes = content.episodes(file);
  if (flags.episode === undefined) {
    return [[span(`step ${file.step}, ${file.kind}`, "1")], episodeHead, ...episodes.map(episodeRow)];
  }
  const episode = episodes.find(({ id }) => id === flags.episode);
  if (episode === undefined) {
    const some = episodes.slice(0, 3).map(({ id }) => id);
    throw new UserError(`step ${file.step} has no episode ${flags.episode}`, {
      hint: `the first episodes are ${some.join(", ")}`,
    });
  }
  return [...transcript(episode, { coloring: flags.color, width, pieces: content.pieces }), [], legend(flags.color)];
}

function chosenFile(files: readonly EpisodeFile[], { step, validation = false }: TextFlags): EpisodeFile {
  const kind = validation ? "validation" : "train";
  const candidates = files.filter((file) => file.kind === kind);
  const file = step === undefined ? candidates.at(-1) : candidates.find((one) => one.step === step);
  if (file !== undefined) return file;
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
  const size = () => ({ columns: stdout.columns ?? 80, rows: stdout.rows ?? 24 });
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

/** `hone view`: a run and its episodes in the terminal, to walk through or as plain text. */
import { existsSync, realpathSync } from "node:fs";
import { basename, join } from "node:path";
import { emitKeypressEvents } from "node:readline";
import { wantsColors } from "../colors.ts";
import { UserError } from "../errors.ts";
import { type BrowserContent, draw, openState, press } from "../tracking/view/browser.ts";
import { type EpisodeFile, episodeFiles, openPieces, readEpisodes } from "../tracking/view/kept-episodes.ts";
import { type Row, rowText, span } from "../tracking/view/styled.ts";
import { episodeHead, episodeRow, fileRows, runHead } from "../tracking/view/tables.ts";
import { type Coloring, colorings, legend, transcript } from "../tracking/view/transcript.ts";

interface ViewOptions {
  step?: string;
  validation?: boolean;
  episode?: string;
  color?: string;
}

/** @throws UserError when there is no such run, step or episode */
export async function viewCommand(run: string, options: ViewOptions): Promise<void> {
  if (!existsSync(join(run, "metrics.jsonl")) && !existsSync(join(run, "config.yaml"))) {
    throw new UserError(`${run} is no run folder`, { hint: "hone train makes one; the last is runs/latest" });
  }
  const coloring = options.color ?? "advantage";
  if (!colorings.some((one) => one === coloring)) {
    throw new UserError(`--color ${coloring}: there are ${colorings.join(", ")}`);
  }
  const content = openContent(run);
  const plain =
    options.step !== undefined || options.episode !== undefined || !process.stdout.isTTY || !process.stdin.isTTY;
  if (plain) print(plainRows(content, options, coloring as Coloring));
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

function plainRows(content: BrowserContent, options: ViewOptions, coloring: Coloring): Row[] {
  const width = process.stdout.columns ?? 100;
  const { files, fileRow } = content;
  if (options.step === undefined && options.episode === undefined) {
    return [...content.head(width), ...files.map(fileRow)];
  }
  const file = chosenFile(files, options);
  const episodes = content.episodes(file);
  if (options.episode === undefined) {
    return [[span(`step ${file.step}, ${file.kind}`, "1")], episodeHead, ...episodes.map(episodeRow)];
  }
  const episode = episodes.find(({ id }) => id === options.episode);
  if (episode === undefined) {
    const some = episodes.slice(0, 3).map(({ id }) => id);
    throw new UserError(`step ${file.step} has no episode ${options.episode}`, {
      hint: `there are ${some.join(", ")}, ...`,
    });
  }
  return [...transcript(episode, { coloring, width, pieces: content.pieces }), [], legend(coloring)];
}

function chosenFile(files: readonly EpisodeFile[], { step, validation = false }: ViewOptions): EpisodeFile {
  const kind = validation ? "validation" : "train";
  const those = files.filter((file) => file.kind === kind);
  const file = step === undefined ? those.at(-1) : those.find((one) => one.step === Number(step));
  if (file !== undefined) return file;
  throw new UserError(
    step === undefined ? `no ${kind} episodes have been kept yet` : `there are no ${kind} episodes of step ${step}`,
    {
      hint: those.length === 0 ? "the run has kept none" : `steps: ${those.map((one) => one.step).join(", ")}`,
    },
  );
}

function print(rows: readonly Row[]): void {
  process.stdout.write(`${rows.map((row) => rowText(row, wantsColors(process.stdout))).join("\n")}\n`);
}

/** The alternate screen, until the person ends it; whatever happens, the terminal is given back as it was. */
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

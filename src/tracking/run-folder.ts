/** The folder of a run: its files, its lock, its metrics, and how a run continues in it. The trainer fills checkpoints/. */
import {
  appendFileSync,
  closeSync,
  existsSync,
  lstatSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  realpathSync,
  renameSync,
  rmSync,
  statSync,
  symlinkSync,
} from "node:fs";
import { basename, join, resolve } from "node:path";
import { z } from "zod";
import { HoneError, readable, UserError } from "../base/errors.ts";
import {
  appendLine,
  makeFolder,
  openInside,
  readInside,
  removeLeftovers,
  temporaryName,
  writeWhole,
} from "../base/files.ts";
import { isAbandoned, lockFolder } from "../base/folder-lock.ts";
import { type Origin, originKind } from "../config/tree.ts";
import type { Episode } from "../trajectories/types.ts";
import { describeEvent } from "./console-lines.ts";
import type { Metrics, RunEvent, StepMetrics, Subscriber } from "./events.ts";
import { linesFrom, numbersOf, parseLine, toJson, tooLong } from "./json-lines.ts";

/** One line of metrics.jsonl. A training step has no `kind`. */
interface MetricsLine {
  step: number;
  kind?: "validation";
  epoch?: number;
  /** ISO 8601. */
  time: string;
  metrics: Metrics;
}

export interface RunFolder {
  /** Absolute. */
  readonly path: string;
  /** `{path}/checkpoints`. */
  readonly checkpoints: string;
  /** The worker's standard error goes there. */
  readonly workerLog: string;
  /** Copies the tokenizer's files from a model's folder, so that the run folder alone can decode its tokens. */
  keepTokenizer(model: string): void;
  /** Writes the resolved configuration as config.yaml, and the kinds of its origins as origins.json. */
  writeConfig(yaml: string, origins: ReadonlyMap<string, Origin>): void;
  /** Appends `{step, epoch, time, ...metrics}` to metrics.jsonl. */
  appendMetrics(line: MetricsLine): void;
  /** Writes episodes/step-000012.jsonl or step-000012-validation.jsonl, one episode per line. */
  writeEpisodes(step: number, episodes: readonly Episode[], kind?: "validation"): void;
  /** Appends lines to log.txt, each with its time. */
  log(text: string): void;
  /**
   * Restores the state after `step`; null: before the first step. Later metrics move to metrics.discarded.jsonl, later
   * episodes to episodes/discarded/. A last line that was cut off is repaired.
   *
   * @returns how many lines of metrics were moved
   */
  rewind(step: number | null): { discarded: number };
  /** The steps in metrics.jsonl, oldest first; each iteration reads the file. */
  history(): Iterable<StepMetrics>;
  /** Releases the folder's lock. */
  close(): void;
  /** Releases the lock, and removes the folder if no run has begun in it (no configuration, no checkpoint). */
  abandon(): void;
}

export interface NewRun {
  /** Holds the runs; `{root}/latest` becomes a link to the new one. */
  root?: string;
  project: string;
  experiment: string;
  now?: Date;
}

/**
 * Creates `{root}/{project}-{experiment}-{yyyymmdd-hhmmss}`, with a number if several start in the same second. Once its
 * configuration is written, `{root}/latest` points to it.
 * @throws RunError or the file system's error when it cannot be created
 */
export function createRunFolder({ root = "runs", project, experiment, now = new Date() }: NewRun): RunFolder {
  makeFolder(root);
  removeLeftovers(root);
  removeUnbegun(root);
  const path = makeDatedFolder({ root, project, experiment, now });
  return openFolder(path, (folder) => linkLatest(resolve(root), basename(path), folder));
}

/** Creates `{root}/{project}-{experiment}-{yyyymmdd-hhmmss}`. Returns its absolute path. */
export function makeDatedFolder({ root = "runs", project, experiment, now = new Date() }: NewRun): string {
  makeFolder(root);
  const name = `${plain(project)}-${plain(experiment)}-${stamp(now)}`;
  for (let attempt = 1; ; attempt++) {
    const path = resolve(root, attempt === 1 ? name : `${name}-${attempt}`);
    try {
      mkdirSync(path, { mode: ownersOnly });
      return path;
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== "EEXIST") throw error;
    }
  }
}

/**
 * Opens a run folder to continue, or creates a folder with a name that the user chose.
 * @param path may be a link such as runs/latest
 * @throws UserError when it is a file, contains something other than a run, or another trainer uses it
 */
export function openRunFolder(path: string): RunFolder {
  // The target of a link: runs/latest may point to another run later.
  const real = existsSync(path) ? realpathSync(path) : resolve(path);
  if (existsSync(real)) {
    if (!statSync(real).isDirectory()) throw new UserError(`${path} is a file, not a run folder`);
    const inside = readdirSync(real);
    if (inside.length > 0 && !inside.includes("config.yaml") && !inside.includes("checkpoints")) {
      const names = inside.slice(0, 3).join(", ");
      throw new UserError(`${path} is not a run folder: it contains ${names}, but config.yaml is missing`, {
        hint: "use a run folder such as runs/latest, or a folder that does not exist",
      });
    }
  }
  return openFolder(real);
}

/** Episodes and logs contain the words of agents and models. */
const ownersOnly = 0o700;

/** @param onBegin called when the configuration is written */
function openFolder(path: string, onBegin: (folder: RunFolder) => void = () => {}): RunFolder {
  // An existing folder keeps its permissions.
  makeFolder(path, ownersOnly);
  for (const folder of ["checkpoints", "episodes"]) makeFolder(join(path, folder));
  const unlock = lockFolder(path);
  for (const folder of [path, join(path, "episodes")]) removeLeftovers(folder, () => true);
  const log = (text: string) => {
    const time = new Date().toISOString();
    appendLine(join(path, "log.txt"), `${time} ${text.replaceAll("\n", `\n${time} `)}`);
  };
  const folder: RunFolder = {
    path,
    checkpoints: join(path, "checkpoints"),
    workerLog: join(path, "worker.log"),
    log,
    keepTokenizer(model) {
      for (const name of ["tokenizer.json", "tokenizer_config.json"]) {
        const source = join(model, name);
        const copy = join(path, "tokenizer", name);
        if (!existsSync(source) || existsSync(copy)) continue;
        makeFolder(join(path, "tokenizer"));
        writeWhole(copy, [readFileSync(source, "utf8")]);
      }
    },
    writeConfig(yaml, origins) {
      writeWhole(join(path, originsFile), [`${JSON.stringify(chosenOrigins(origins), null, 2)}\n`]);
      writeWhole(join(path, "config.yaml"), [yaml]);
      onBegin(folder);
    },
    appendMetrics: ({ step, kind, epoch, time, metrics }) =>
      appendLine(join(path, metricsFile), toJson({ step, kind, epoch, time, ...metrics })),
    writeEpisodes(step, episodes, kind) {
      const lines = (function* () {
        for (const episode of episodes) yield `${toJson(withoutRouting(episode))}\n`;
      })();
      writeWhole(join(path, "episodes", episodesFile(step, kind)), lines);
    },
    rewind(step) {
      const { discarded, repaired } = rewindMetrics(path, step ?? -1);
      const episodes = discardEpisodes(join(path, "episodes"), step ?? -1);
      if (repaired) log("the last line of metrics.jsonl was cut off and has been moved to metrics.discarded.jsonl");
      if (discarded + episodes > 0) {
        const which = step === null ? "of a run without a checkpoint" : `after the checkpoint of step ${step}`;
        log(`discarded what was recorded ${which}: ${discarded} lines of metrics, ${episodes} episode files`);
      }
      return { discarded };
    },
    history: () => ({ [Symbol.iterator]: () => eachMetrics(path) }),
    close: unlock,
    abandon() {
      const begun = hasBegun(path);
      unlock();
      if (!begun) rmSync(path, { recursive: true, force: true });
    },
  };
  return folder;
}

export const originsFile = "origins.json";

/** What set each key whose value is not a default. */
const originsSchema = z.record(z.string(), z.enum(["preset", "script", "file", "flag", "override"]));
export type ChosenOrigins = z.output<typeof originsSchema>;

function chosenOrigins(origins: ReadonlyMap<string, Origin>): ChosenOrigins {
  const kinds = Array.from(origins, ([key, origin]) => [key, originKind(origin)] as const);
  return Object.fromEntries(kinds.flatMap(([key, kind]) => (kind === "default" ? [] : [[key, kind]])));
}

/** Undefined for a run of an earlier version, or if the file cannot be read: config.yaml has the text of each origin. */
export function readOrigins(path: string): ChosenOrigins | undefined {
  try {
    const json = readInside(path, originsFile, maxOriginsBytes)?.toString("utf8");
    return json === undefined ? undefined : originsSchema.safeParse(JSON.parse(json)).data;
  } catch (error) {
    if (error instanceof SyntaxError || readable(error) instanceof HoneError) return undefined;
    throw error;
  }
}

const maxOriginsBytes = 250_000;

function hasBegun(path: string): boolean {
  if (existsSync(join(path, "config.yaml"))) return true;
  return existsSync(join(path, "checkpoints")) && readdirSync(join(path, "checkpoints")).length > 0;
}

/** Removes runs whose process was killed before they began. Nothing in them can be continued. */
function removeUnbegun(root: string): void {
  for (const name of readdirSync(root)) {
    const path = join(root, name);
    if (isAbandoned(path) && !hasBegun(path)) rmSync(path, { recursive: true, force: true });
  }
}

/** Experts would take most of the space, and only training reads them. */
const withoutRouting = (episode: Episode): Episode => ({
  ...episode,
  trajectories: episode.trajectories.map(({ steps, ...trajectory }) => ({
    ...trajectory,
    steps: steps.map(({ routing: _, ...step }) => step),
  })),
});

/** The name within episodes/. */
export const episodesFile = (step: number, kind?: "validation") =>
  `step-${String(step).padStart(6, "0")}${kind ? `-${kind}` : ""}.jsonl`;

/** Moves the episodes of later steps to discarded/. Returns how many files. */
function discardEpisodes(folder: string, lastStep: number): number {
  const names = readdirSync(folder);
  const later = names.filter((name) => Number(/^step-(\d+).*\.jsonl$/.exec(name)?.[1] ?? -1) > lastStep);
  if (later.length > 0) makeFolder(join(folder, "discarded"));
  for (const name of later) renameSync(join(folder, name), join(folder, "discarded", name));
  return later.length;
}

/** A folder name on every system. */
const plain = (text: string) => text.replace(/[^\p{L}\p{N}._-]+/gu, "-").replace(/^[.-]+|-+$/g, "") || "run";

/** Local time: 20260131-235959. */
function stamp(date: Date): string {
  const two = (value: number) => String(value).padStart(2, "0");
  const day = `${date.getFullYear()}${two(date.getMonth() + 1)}${two(date.getDate())}`;
  return `${day}-${two(date.getHours())}${two(date.getMinutes())}${two(date.getSeconds())}`;
}

/** Never fails: a run continues without the link and logs a line. */
function linkLatest(root: string, name: string, folder: RunFolder): void {
  const link = join(root, "latest");
  const temporary = temporaryName(link);
  try {
    if (lstatSync(link, { throwIfNoEntry: false })?.isSymbolicLink() === false) {
      folder.log(`${link} is not a link and was left unchanged`);
      return;
    }
    rmSync(temporary, { force: true });
    symlinkSync(name, temporary, "dir");
    renameSync(temporary, link);
  } catch (error) {
    folder.log(`${link} could not be created: ${(error as Error).message}`);
  }
}

/** What to do if a path is not a run. */
export const newestRun = () =>
  existsSync(join("runs", "latest"))
    ? "runs/latest is the newest run"
    : "there are no runs in ./runs; hone train creates one";

/** Writes metrics.jsonl and log.txt. */
export function runFilesSubscriber(folder: RunFolder, now: () => Date = () => new Date()): Subscriber {
  return {
    event(event: RunEvent) {
      const time = now().toISOString();
      if (event.type === "step-end") {
        const { step, epoch, metrics } = event;
        folder.appendMetrics({ step, epoch, time, metrics });
      } else if (event.type === "validation-end") {
        folder.appendMetrics({ step: event.step, kind: "validation", time, metrics: event.metrics });
      }
      const text = describeEvent(event);
      if (text !== null) folder.log(text);
    },
    async close() {},
  };
}

// Reads metrics.jsonl of a run folder, and rewinds it to an earlier step. The run folder appends to it.

export const metricsFile = "metrics.jsonl";

/** A training step has no `kind`. `time`: ISO 8601. */
const lineSchema = z.looseObject({
  step: z.int().nonnegative(),
  epoch: z.number().optional(),
  kind: z.literal("validation").optional(),
  time: z.string().optional(),
});

export interface ReadMetricsLine {
  step: number;
  epoch: number | undefined;
  validation: boolean;
  time: string | undefined;
  metrics: Record<string, number>;
}

/** @throws Error with a clause about what is wrong */
export function readMetricsLine(text: string): ReadMetricsLine {
  const { step, epoch, kind, time, ...rest } = parseLine(lineSchema, text);
  return { step, epoch, validation: kind === "validation", time, metrics: numbersOf(rest) };
}

interface ParsedLine {
  text: string;
  /** False: the line was cut off. */
  ended: boolean;
  /** Undefined: the line cannot be read. */
  read: ReadMetricsLine | undefined;
}

type Kind = "step" | "validation";

/** The lines of training steps or of validations, oldest first. Lines that cannot be read are left out. */
export const readMetrics = (runFolder: string, kind: Kind = "step"): StepMetrics[] => [...eachMetrics(runFolder, kind)];

/** The same, one line at a time, for long runs. */
export function* eachMetrics(runFolder: string, kind: Kind = "step"): Generator<StepMetrics> {
  for (const { read } of parsedLines(runFolder)) {
    if (read?.validation === (kind === "validation")) yield { step: read.step, metrics: read.metrics };
  }
}

/**
 * Moves every line of a step after `lastStep`, and every line that cannot be read, to metrics.discarded.jsonl.
 * A crash in between can leave a line in both files but never in neither.
 * `repaired`: the last line was cut off.
 */
function rewindMetrics(runFolder: string, lastStep: number): { discarded: number; repaired: boolean } {
  const isKept = ({ read }: ParsedLine) => read !== undefined && read.step <= lastStep;
  const discarded: string[] = [];
  let last: ParsedLine | undefined;
  for (const line of parsedLines(runFolder)) {
    if (!isKept(line)) discarded.push(`${line.text}\n`);
    last = line;
  }
  const isCutOff = last?.ended === false;
  if (discarded.length > 0) appendFileSync(join(runFolder, "metrics.discarded.jsonl"), discarded.join(""));
  if (discarded.length > 0 || isCutOff) writeWhole(join(runFolder, metricsFile), keptLines(runFolder, isKept));
  return { discarded: discarded.length, repaired: isCutOff && last?.read === undefined };
}

function* keptLines(runFolder: string, isKept: (line: ParsedLine) => boolean): Generator<string> {
  for (const line of parsedLines(runFolder)) if (isKept(line)) yield `${line.text}\n`;
}

/** @throws UserError for a line that is too long */
function* parsedLines(runFolder: string): Generator<ParsedLine> {
  const file = openInside(runFolder, metricsFile);
  if (file === undefined) return;
  try {
    let number = 0;
    for (const { text, length, ended } of linesFrom(file)) {
      number++;
      if (text === undefined) {
        throw new UserError(`${join(runFolder, metricsFile)}:${number}: the line is too long: ${tooLong(length)}`, {
          hint: "remove that line",
        });
      }
      if (text.trim() !== "") yield { text, ended, read: readOrSkip(text) };
    }
  } finally {
    closeSync(file.handle);
  }
}

function readOrSkip(text: string): ReadMetricsLine | undefined {
  try {
    return readMetricsLine(text);
  } catch {
    return undefined;
  }
}

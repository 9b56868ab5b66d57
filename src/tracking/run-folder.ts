/**
 * The folder of a run: what lies where in it, who may write, and how it is continued. Knows nothing of what the
 * figures mean; checkpoints/ belongs to the trainer's checkpoint store.
 */
import {
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
import { UserError } from "../errors.ts";
import { appendLine, writeWhole } from "../files/durable-files.ts";
import { isAbandoned, lockFolder } from "../files/folder-lock.ts";
import { makeFolder } from "../files/make-folder.ts";
import { removeLeftovers, temporaryName } from "../files/temporary-names.ts";
import type { Episode } from "../trajectories/types.ts";
import type { Metrics, StepMetrics } from "./events.ts";
import { toJson } from "./json-lines.ts";
import { eachMetrics, rewindMetrics } from "./metrics-file.ts";

/** One line of metrics.jsonl. `kind` is absent on the line of a training step. */
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
  /** Where the worker's standard error goes. */
  readonly workerLog: string;
  /** Copies the tokenizer's files of a model's folder, where it has any, so that the folder alone tells its tokens' texts. */
  keepTokenizer(model: string): void;
  /** The resolved configuration, as config.yaml. */
  writeConfig(yaml: string): void;
  /** Appends `{step, epoch, time, ...metrics}` to metrics.jsonl. */
  appendMetrics(line: MetricsLine): void;
  /** Writes episodes/step-000012.jsonl, one episode a line; step-000012-validation.jsonl for those of a validation. */
  writeEpisodes(step: number, episodes: readonly Episode[], kind?: "validation"): void;
  /** Appends lines to log.txt, each with the time. */
  log(text: string): void;
  /**
   * Brings the folder back to what it held when `step` was done; null: to before the first step. Later metrics move
   * to metrics.discarded.jsonl, later episodes to episodes/discarded/. A torn last line is repaired.
   * Returns how many lines were moved (as a sentence in the log too).
   */
  rewind(step: number | null): { discarded: number };
  /** The steps in metrics.jsonl, oldest first; each iteration reads the file. */
  history(): Iterable<StepMetrics>;
  /** Gives the folder free. */
  close(): void;
  /** Gives the folder free, and removes it if no run has begun in it (no configuration, no checkpoint). */
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
 * Makes `{root}/{project}-{experiment}-{yyyymmdd-hhmmss}`, unique also when several start in the same second. When
 * the run has begun (its configuration is written) `{root}/latest` points at it.
 * @throws RunError or the file system's error when it cannot be made
 */
export function createRunFolder({ root = "runs", project, experiment, now = new Date() }: NewRun): RunFolder {
  makeFolder(root);
  removeLeftovers(root);
  removeUnbegun(root);
  const path = makeDatedFolder({ root, project, experiment, now });
  return openFolder(path, (folder) => linkLatest(resolve(root), basename(path), folder));
}

/** Makes `{root}/{project}-{experiment}-{yyyymmdd-hhmmss}`, empty and new. Returns its absolute path. */
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
 * Opens a folder by its path (or a link such as runs/latest): one to continue, or one of the user's own naming, which
 * is made when it does not exist.
 * @throws UserError when it is a file, when it holds something else than a run, or when another trainer is in it
 */
export function openRunFolder(path: string): RunFolder {
  // Through links: runs/latest may point elsewhere tomorrow.
  const real = existsSync(path) ? realpathSync(path) : resolve(path);
  if (existsSync(real)) {
    if (!statSync(real).isDirectory()) throw new UserError(`${path} is a file, not a run folder`);
    const inside = readdirSync(real);
    if (inside.length > 0 && !inside.includes("config.yaml") && !inside.includes("checkpoints")) {
      throw new UserError(`${path} is no run folder: it holds ${inside.slice(0, 3).join(", ")} and no config.yaml`, {
        hint: "name a run folder such as runs/latest, or one that does not exist yet",
      });
    }
  }
  return openFolder(real);
}

/** Episodes and logs hold what agents and models said. */
const ownersOnly = 0o700;

/** @param onBegin told each time the run begins */
function openFolder(path: string, onBegin: (folder: RunFolder) => void = () => {}): RunFolder {
  // Of a folder that exists the permissions are the user's choice.
  makeFolder(path, ownersOnly);
  for (const folder of ["checkpoints", "episodes"]) makeFolder(join(path, folder));
  const unlock = lockFolder(path);
  for (const folder of [path, join(path, "episodes")]) removeLeftovers(folder, () => true);
  const metricsFile = join(path, "metrics.jsonl");
  const log = (text: string) => {
    const time = new Date().toISOString();
    appendLine(
      join(path, "log.txt"),
      text
        .split("\n")
        .map((line) => `${time} ${line}`)
        .join("\n"),
    );
  };
  const folder: RunFolder = {
    path,
    checkpoints: join(path, "checkpoints"),
    workerLog: join(path, "worker.log"),
    log,
    keepTokenizer(model) {
      for (const name of ["tokenizer.json", "tokenizer_config.json"]) {
        const [source, copy] = [join(model, name), join(path, "tokenizer", name)];
        if (!existsSync(source) || existsSync(copy)) continue;
        makeFolder(join(path, "tokenizer"));
        writeWhole(copy, [readFileSync(source, "utf8")]);
      }
    },
    writeConfig(yaml) {
      writeWhole(join(path, "config.yaml"), [yaml]);
      onBegin(folder);
    },
    appendMetrics: ({ step, kind, epoch, time, metrics }) =>
      appendLine(metricsFile, toJson({ step, kind, epoch, time, ...metrics })),
    writeEpisodes(step, episodes, kind) {
      const lines = (function* () {
        for (const episode of episodes) yield `${toJson(episode)}\n`;
      })();
      writeWhole(join(path, "episodes", episodesFile(step, kind)), lines);
    },
    rewind(step) {
      const { discarded, repaired } = rewindMetrics(path, step ?? -1);
      const episodes = discardEpisodes(join(path, "episodes"), step ?? -1);
      if (repaired)
        log("the last line of metrics.jsonl was cut off in the middle and has been moved to metrics.discarded.jsonl");
      if (discarded + episodes > 0) {
        const after = step === null ? "of a run without a checkpoint" : `after step ${step}, the checkpoint's`;
        log(`set aside what came ${after}: ${discarded} metrics lines, ${episodes} episode files`);
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

function hasBegun(path: string): boolean {
  if (existsSync(join(path, "config.yaml"))) return true;
  return existsSync(join(path, "checkpoints")) && readdirSync(join(path, "checkpoints")).length > 0;
}

/** Runs whose process was killed before they began: nothing in them can be continued. */
function removeUnbegun(root: string): void {
  for (const name of readdirSync(root)) {
    const path = join(root, name);
    if (isAbandoned(path) && !hasBegun(path)) rmSync(path, { recursive: true, force: true });
  }
}

/** Its name within the folder's episodes/. */
export const episodesFile = (step: number, kind?: "validation") =>
  `step-${String(step).padStart(6, "0")}${kind ? `-${kind}` : ""}.jsonl`;

/** Moves the episodes of later steps out of the way. Returns how many files. */
function discardEpisodes(folder: string, lastStep: number): number {
  const names = readdirSync(folder);
  const later = names.filter((name) => Number(/^step-(\d+).*\.jsonl$/.exec(name)?.[1] ?? -1) > lastStep);
  if (later.length > 0) makeFolder(join(folder, "discarded"));
  for (const name of later) renameSync(join(folder, name), join(folder, "discarded", name));
  return later.length;
}

/** A name that is one plain folder name everywhere. */
const plain = (text: string) => text.replace(/[^\p{L}\p{N}._-]+/gu, "-").replace(/^[.-]+|-+$/g, "") || "run";

/** Local time, as people look for it: 20260131-235959. */
function stamp(date: Date): string {
  const two = (value: number) => String(value).padStart(2, "0");
  const day = `${date.getFullYear()}${two(date.getMonth() + 1)}${two(date.getDate())}`;
  return `${day}-${two(date.getHours())}${two(date.getMinutes())}${two(date.getSeconds())}`;
}

/** A convenience that must never end a run: what a person put there, or a file system without links, is only noted. */
function linkLatest(root: string, name: string, folder: RunFolder): void {
  const link = join(root, "latest");
  const temporary = temporaryName(link);
  try {
    if (lstatSync(link, { throwIfNoEntry: false })?.isSymbolicLink() === false) {
      folder.log(`${link} is no link and was left as it is`);
      return;
    }
    rmSync(temporary, { force: true });
    symlinkSync(name, temporary, "dir");
    renameSync(temporary, link);
  } catch (error) {
    folder.log(`${link} could not be made: ${(error as Error).message}`);
  }
}

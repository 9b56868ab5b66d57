/**
 * Checkpoints of a run: folders that are complete or absent. How one is described, saved, verified, kept and deleted.
 *
 * One has the weights and optimizers of policy and critic, the configuration and the progress, and is written under a temporary name,
 * synced and renamed. It has no state of a random generator or dataset, because the tasks of a step and every random draw are
 * functions of the step.
 *
 * checkpoint.json has a SHA-256 of each file and, at its end, of itself; all are checked when a checkpoint is opened (500 MB: 0.4 s of
 * one core). A damaged checkpoint is skipped with a warning and the next older one is used; if all are damaged, the run fails.
 * Names of files in progress contain their process (`@host@pid@start`): the next start removes those of a process that has ended.
 */
import { createHash } from "node:crypto";
import { createReadStream, existsSync } from "node:fs";
import { type FileHandle, mkdir, open, readdir, rename, rm, stat, statfs } from "node:fs/promises";
import { basename, dirname, join, relative, resolve, sep } from "node:path";
import { HoneError, messageOf, RunError, UserError } from "../base/errors.ts";
import { formatBytes, isOutOfSpace, isOwnerGone, outOfSpace, ownerMark, readInside } from "../base/files.ts";
import { isObject, ownValue } from "../base/values.ts";
import type { RunEvent } from "../tracking/events.ts";
import { numbersOf, toJson } from "../tracking/json-lines.ts";
import type { Models, Progress, Validation } from "./state.ts";

// checkpoint.json: describes a checkpoint and lists the files that it must have.

/** The content of a checkpoint in addition to its folders `policy/` and `critic/`. */
export interface CheckpointContent {
  /** Steps done. */
  step: number;
  /** What the run needs to continue; JSON. */
  state: Record<string, unknown>;
  /** Measured at this step. */
  metrics: Readonly<Record<string, number>>;
  /** The value that determines the best checkpoint (higher is better); absent if not measured. */
  score?: number | undefined;
}

interface FileEntry {
  bytes: number;
  /** Absent for large files of checkpoints that earlier versions wrote. */
  sha256?: string;
}

interface Manifest extends CheckpointContent {
  /** By path within the checkpoint, with forward slashes; without checkpoint.json itself. */
  files: Record<string, FileEntry>;
  /** Whether checkpoint.json has a hash of itself; earlier versions wrote none. */
  hashed: boolean;
}

const manifestFile = "checkpoint.json";
const format = 1;
const maxManifestBytes = 1 << 28;

/** Syncs and describes all files in `folder`, then writes checkpoint.json, whose presence means "complete". */
async function writeManifest(folder: string, content: CheckpointContent): Promise<void> {
  const entries = await readdir(folder, { withFileTypes: true, recursive: true });
  const files: Record<string, FileEntry> = {};
  for (const entry of entries.filter((one) => one.isFile())) {
    const path = join(entry.parentPath, entry.name);
    await sync(path);
    files[path.slice(folder.length + 1).replaceAll(sep, "/")] = await describe(path);
  }
  for (const entry of entries.filter((one) => one.isDirectory())) await sync(join(entry.parentPath, entry.name));
  const handle = await open(join(folder, manifestFile), "wx");
  try {
    const text = toJson({ format, ...content, files });
    await handle.writeFile(`${text.slice(0, -1)},"sha256":"${hashOf(text)}"}\n`);
    await handle.sync();
  } finally {
    await handle.close();
  }
  await sync(folder);
}

/** @throws UserError if `folder` is not a checkpoint, was written by a newer version, or has a damaged checkpoint.json */
async function readManifest(folder: string): Promise<Manifest> {
  const text = await readManifestText(folder);
  const parsed = parseManifest(folder, text);
  if (typeof parsed.format === "number" && parsed.format > format) {
    throw new UserError(
      `${folder} was written by a newer version of Hone: its format is ${parsed.format}, but this version supports only ${format}`,
      { hint: "update Hone, or use a checkpoint of this version" },
    );
  }
  const hashed = "sha256" in parsed;
  if (hashed && !hasOwnHash(text)) throw damagedError(folder, `the content of ${manifestFile} has changed`);
  const { step, state, metrics, score, files } = parsed as Partial<Manifest>;
  if (typeof step !== "number" || !isObject(state) || !isObject(metrics) || !isObject(files)) {
    throw damagedError(folder, `${manifestFile} has no step, state, metrics or files`);
  }
  for (const [name, entry] of Object.entries(files)) {
    if (typeof (entry as FileEntry | null)?.bytes !== "number")
      throw damagedError(folder, `${manifestFile} does not describe ${name}`);
  }
  const known = typeof score === "number" ? score : undefined;
  return { step, state, metrics: numbersOf(metrics), score: known, files, hashed };
}

/** Whether the hash at the end of the text is that of the object without it. */
function hasOwnHash(text: string): boolean {
  const [end = "", hash] = /,"sha256":"(\w+)"\}\n$/.exec(text) ?? [];
  return hash !== undefined && hashOf(`${text.slice(0, -end.length)}}`) === hash;
}

async function readManifestText(folder: string): Promise<string> {
  const bytes = readInside(folder, manifestFile, maxManifestBytes);
  if (bytes !== undefined) return bytes.toString("utf8");
  throw new UserError(`${folder} is not a checkpoint: ${manifestFile} is missing`, {
    hint: "name a folder such as runs/latest/checkpoints/step-000010",
  });
}

function parseManifest(folder: string, text: string): Record<string, unknown> {
  let parsed: unknown;
  try {
    parsed = JSON.parse(text);
  } catch {
    throw damagedError(folder, `${manifestFile} cannot be read as JSON`);
  }
  if (!isObject(parsed)) throw damagedError(folder, `${manifestFile} is not a JSON object`);
  return parsed;
}

/** @throws UserError that names the first file that is missing or has changed */
async function checkFiles(folder: string, files: Manifest["files"]): Promise<void> {
  for (const [name, { bytes, sha256 }] of Object.entries(files)) {
    const path = join(folder, name);
    const size = await stat(path).then(
      (found) => (found.isFile() ? found.size : null),
      () => null,
    );
    if (size === null) throw damagedError(folder, `${name} is missing, or not a file`);
    if (size !== bytes) throw damagedError(folder, `${name} has ${size} bytes instead of ${bytes}`);
    if (sha256 !== undefined && (await hashFile(path)) !== sha256)
      throw damagedError(folder, `the content of ${name} has changed`);
  }
}

/** Flushes a file, or a folder's list of names, to disk. */
async function sync(path: string): Promise<void> {
  let handle: FileHandle | undefined;
  try {
    handle = await open(path, "r");
    await handle.sync();
  } catch (error) {
    // Windows and some network file systems cannot sync a folder, or a file opened for reading. Other errors are real.
    if (!["EPERM", "EISDIR", "EINVAL", "ENOTSUP"].includes((error as NodeJS.ErrnoException).code ?? "")) throw error;
  } finally {
    await handle?.close();
  }
}

async function describe(path: string): Promise<FileEntry> {
  const { size: bytes } = await stat(path);
  return { bytes, sha256: await hashFile(path) };
}

/** In pieces, so that a large file neither fills memory nor blocks the event loop. */
async function hashFile(path: string): Promise<string> {
  const sum = createHash("sha256");
  for await (const piece of createReadStream(path, { highWaterMark: 1 << 20 })) sum.update(piece as Buffer);
  return sum.digest("hex");
}

const hashOf = (text: string) => createHash("sha256").update(text).digest("hex");

const damagedError = (folder: string, what: string) =>
  new UserError(`the checkpoint ${folder} is damaged: ${what}`, {
    hint: "use another checkpoint of the run",
  });

// The checkpoints of a run. Each is written under a temporary name and renamed when it is complete and on disk, so that a
// kill at any instant leaves only complete ones.

export interface Checkpoint extends CheckpointContent {
  /** Absolute. */
  path: string;
  /** On disk. */
  bytes: number;
}

/** How much to keep. The newest and the best (by `score`) are always kept. */
export interface Retention {
  maxNumber: number;
  maxBytes: number;
}

/** Called with the folder of a checkpoint before it is deleted, to delete what else belongs to it. */
export type OnDelete = (folder: string) => Promise<void>;
const nothingElse: OnDelete = async () => {};

export interface SavedCheckpoint {
  path: string;
  bytes: number;
  seconds: number;
  /** Deleted checkpoints: by retention, or because they are later than the saved one. */
  removed: string[];
}

/**
 * Writes `{folder}/step-000012` with one folder for each of `parts` and checkpoint.json, then deletes what retention does
 * not keep. Later checkpoints are deleted too: the run went back to before them. Only one process may save into a folder,
 * which the run folder's lock ensures.
 *
 * @throws RunError if the disk has no room; earlier checkpoints stay, and no partial one is left
 */
export async function saveCheckpoint(
  folder: string,
  content: CheckpointContent,
  parts: Readonly<Record<string, (directory: string) => Promise<void>>>,
  retention: Retention,
  onDelete = nothingElse,
): Promise<SavedCheckpoint> {
  const start = performance.now();
  await mkdir(folder, { recursive: true });
  await repair(folder, () => true, onDelete);
  const earlier = await listCheckpoints(folder);
  const expected = earlier.at(-1)?.bytes ?? 0;
  await checkRoom(folder, expected, content.step);

  const path = resolve(folder, nameOf(content.step));
  const temporary = join(folder, `${temporaryPrefix}${nameOf(content.step)}${ownerMark}`);
  try {
    await mkdir(temporary);
    for (const [name, write] of Object.entries(parts)) await write(join(temporary, name));
    await writeManifest(temporary, content);
  } catch (error) {
    await remove(temporary, onDelete);
    throw isOutOfSpace(error) ? outOfSpace(path, expected, error) : error;
  }
  // After a kill between these two, `repair` finds the new one, complete under its temporary name.
  if (existsSync(path)) await discard(path, onDelete);
  await rename(temporary, path);
  await sync(folder);

  const removed = await prune(folder, content.step, retention, onDelete);
  const { bytes } = await summarize(path);
  return { path, bytes, seconds: (performance.now() - start) / 1000, removed };
}

/**
 * The newest complete checkpoint; undefined if the folder has none. Reports damaged ones that it skips. Completes
 * or removes what killed processes of this machine left.
 *
 * @throws RunError if there are checkpoints and all of them are damaged
 */
export async function latestCheckpoint(
  folder: string,
  warn: (text: string) => void = () => {},
  onDelete = nothingElse,
): Promise<Checkpoint | undefined> {
  if (!existsSync(folder)) return undefined;
  await repair(folder, isOwnerGone, onDelete);
  const damages: string[] = [];
  for (const name of (await checkpointNames(folder)).reverse()) {
    try {
      const checkpoint = await readCheckpoint(join(folder, name), warn);
      for (const damage of damages) warn(`${damage}; ${name} is used instead`);
      return checkpoint;
    } catch (error) {
      if (!(error instanceof HoneError)) throw error;
      damages.push(error.message);
    }
  }
  if (damages.length === 0) return undefined;
  throw new RunError(`all checkpoints in ${folder} are damaged:\n${damages.map((one) => `  ${one}`).join("\n")}`, {
    hint: "restore one of them from a copy, or start again from step 0 with training.resume_mode=off",
  });
}

/**
 * Reads a checkpoint after checking that all its files are what was written.
 * @param warn told when this cannot be checked
 * @throws UserError if `path` is not a checkpoint, is damaged, or was written by a newer version
 */
export async function readCheckpoint(path: string, warn: (text: string) => void = () => {}): Promise<Checkpoint> {
  const manifest = await readManifest(path);
  await checkFiles(path, manifest.files);
  if (!manifest.hashed) {
    warn(
      `${join(path, "checkpoint.json")} has no SHA-256, as earlier versions wrote it: changes to it are not noticed`,
    );
  }
  return checkpointOf(path, manifest);
}

/** The checkpoint with the highest score; undefined if none has a score. */
export async function bestCheckpoint(folder: string): Promise<Checkpoint | undefined> {
  return existsSync(folder) ? bestOf(await listCheckpoints(folder)) : undefined;
}

const temporaryPrefix = ".tmp-";
const removedPrefix = ".removed-";
const nameOf = (step: number) => `step-${String(step).padStart(6, "0")}`;
const stepOf = (name: string) => Number(name.slice("step-".length));
/** Handles what a kill left: renames checkpoints that are complete, and removes the rest. */
async function repair(folder: string, mayTake: (name: string) => boolean, onDelete: OnDelete): Promise<void> {
  for (const name of await readdir(folder)) {
    if (!(name.startsWith(temporaryPrefix) || name.startsWith(removedPrefix)) || !mayTake(name)) continue;
    const path = join(folder, name);
    const final = join(folder, name.slice(temporaryPrefix.length).replace(/@.*/, ""));
    const whole = name.startsWith(temporaryPrefix) && (await readCheckpoint(path).catch(damaged));
    if (whole && !existsSync(final)) await rename(path, final);
    else await remove(path, onDelete);
  }
}

/** Oldest first. */
async function checkpointNames(folder: string): Promise<string[]> {
  const names = (await readdir(folder)).filter((name) => /^step-\d+$/.test(name));
  return names.sort((left, right) => stepOf(left) - stepOf(right));
}

/** Checkpoints with a readable checkpoint.json, oldest first. Their other files are not checked. */
async function listCheckpoints(folder: string): Promise<Checkpoint[]> {
  const found: Checkpoint[] = [];
  for (const name of await checkpointNames(folder)) {
    const checkpoint = await summarize(join(folder, name)).catch(damaged);
    if (checkpoint) found.push(checkpoint);
  }
  return found;
}

/** Skips damage, but not a disk that cannot be read. */
function damaged(error: unknown): undefined {
  if (!(error instanceof HoneError)) throw error;
}

const summarize = async (path: string) => checkpointOf(path, await readManifest(path));

function checkpointOf(path: string, { files, hashed: _, ...content }: Manifest): Checkpoint {
  const bytes = Object.values(files).reduce((sum, file) => sum + file.bytes, 0);
  return { ...content, path: resolve(path), bytes };
}

async function prune(
  folder: string,
  newest: number,
  { maxNumber, maxBytes }: Retention,
  onDelete: OnDelete,
): Promise<string[]> {
  const checkpoints = await listCheckpoints(folder);
  const abandoned = checkpoints.filter(({ step }) => step > newest);
  const rest = checkpoints.filter(({ step }) => step <= newest);
  const best = bestOf(rest);
  const removed = [...abandoned];
  let number = rest.length;
  let bytes = rest.reduce((sum, one) => sum + one.bytes, 0);
  for (const one of rest) {
    if (number <= maxNumber && bytes <= maxBytes) break;
    if (one === best || one.step === newest) continue;
    removed.push(one);
    number--;
    bytes -= one.bytes;
  }
  for (const { path } of removed) await discard(path, onDelete);
  return removed.map(({ path }) => path);
}

/** The highest score; of equal ones the newest. */
function bestOf(checkpoints: readonly Checkpoint[]): Checkpoint | undefined {
  let best: { checkpoint: Checkpoint; score: number } | undefined;
  for (const checkpoint of checkpoints) {
    const { score = Number.NaN } = checkpoint;
    if (!Number.isNaN(score) && !(best && best.score > score)) best = { checkpoint, score };
  }
  return best?.checkpoint;
}

/** Renames it first, so that a kill in between leaves no partial checkpoint under its own name. */
async function discard(path: string, onDelete: OnDelete): Promise<void> {
  const renamed = join(dirname(path), `${removedPrefix}${basename(path)}${ownerMark}`);
  await rename(path, renamed);
  await remove(renamed, onDelete);
}

async function remove(path: string, onDelete: OnDelete): Promise<void> {
  await onDelete(path);
  await rm(path, { recursive: true, force: true });
}

/** @param needed bytes, by the size of the previous checkpoint; 0 if there is none */
async function checkRoom(folder: string, needed: number, step: number): Promise<void> {
  const { bavail, bsize } = await statfs(folder);
  const free = bavail * bsize;
  if (free > needed * 1.05) return;
  throw new RunError(
    `not enough disk space for the checkpoint of step ${step} in ${folder}: it needs about ${formatBytes(needed)}, and ${formatBytes(free)} are free`,
    { hint: "free some space (a lower training.max_ckpt_num keeps fewer checkpoints), then continue with --resume" },
  );
}

// Saves checkpoints of a run. A run can continue from a checkpoint, and a checkpoint can be used by itself.

export interface CheckpointOptions {
  /** The validation metric that finds the best checkpoint. */
  bestMetric: string;
  /** Save after every validation that is better than all before. */
  keepBest: boolean;
  retention: Retention;
}

export interface CheckpointParts {
  /** The folder of all checkpoints. */
  folder: string;
  models: Pick<Models, "learner" | "critic">;
  storedConfig: Readonly<Record<string, unknown>>;
  emit(event: RunEvent): void;
}

export interface CheckpointSaver {
  /** Whether this validation is better than that of the best checkpoint. */
  isNewBest(validation: Validation): Promise<boolean>;
  save(progress: Progress, validation: Validation): Promise<void>;
}

/** Deletes the data of a checkpoint that an engine stores outside of its folder. A failure is only reported. */
export const forgetCheckpoint =
  ({ models: { learner }, emit }: Pick<CheckpointParts, "models" | "emit">): OnDelete =>
  async (folder) => {
    try {
      await learner.forgetState?.(join(folder, "policy"));
    } catch (error) {
      emit({ type: "warning", text: `data of a deleted checkpoint could not be deleted: ${messageOf(error)}` });
    }
  };

export function openCheckpointSaver(parts: CheckpointParts, options: CheckpointOptions): CheckpointSaver {
  const { folder, models, storedConfig, emit } = parts;
  const { bestMetric, retention } = options;
  const metricsOf = (step: number, validation: Validation) => (validation.step === step ? validation.metrics : {});
  return {
    async isNewBest({ metrics }) {
      const score = ownValue(metrics, bestMetric);
      if (score === undefined) return false;
      const best = await bestCheckpoint(folder);
      return best?.score === undefined || score > best.score;
    },
    async save(progress, validation) {
      const { step } = progress;
      const { learner, critic } = models;
      const metrics = metricsOf(step, validation);
      const score = ownValue(metrics, bestMetric);
      const files: Record<string, (directory: string) => Promise<void>> = {
        policy: (directory) => learner.saveState(directory),
      };
      if (critic) files.critic = (directory) => critic.saveState(directory);
      const content = { step, state: { progress, config: storedConfig }, metrics, score };
      const saved = await saveCheckpoint(folder, content, files, retention, forgetCheckpoint(parts));
      const path = relative(process.cwd(), saved.path);
      const event = { type: "checkpoint-saved", step, path, bytes: saved.bytes, seconds: saved.seconds } as const;
      const isBest = score !== undefined && (await bestCheckpoint(folder))?.step === step;
      emit(isBest ? { ...event, best: { metric: bestMetric, value: score } } : event);
      for (const removed of saved.removed) {
        emit({ type: "checkpoint-removed", path: relative(process.cwd(), removed) });
      }
    },
  };
}

/**
 * The checkpoints of a run. Each is written under a temporary name and renamed when it is complete and on disk, so that a
 * kill at any instant leaves only complete ones.
 */
import { existsSync } from "node:fs";
import { mkdir, readdir, rename, rm, statfs } from "node:fs/promises";
import { basename, dirname, join, resolve } from "node:path";
import { HoneError, RunError } from "../../errors.ts";
import { formatBytes, isOutOfSpace, outOfSpace } from "../../files/durable-files.ts";
import { isOwnerGone, ownerMark } from "../../files/temporary-names.ts";
import {
  type CheckpointContent,
  checkFiles,
  type Manifest,
  readManifest,
  sync,
  writeManifest,
} from "./checkpoint-manifest.ts";

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

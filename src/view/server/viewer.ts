/** The runs that are viewed, each with its index. */
import { type Dirent, existsSync, lstatSync, readdirSync, realpathSync, type Stats, statSync } from "node:fs";
import { basename, dirname, join } from "node:path";
import { UserError } from "../../errors.ts";
import { openPieces, type Pieces } from "../../tracking/run-folder/pieces.ts";
import { newestRun } from "../../tracking/run-folder/run-folder.ts";
import { defaultCache, removeUnused } from "../index/open-database.ts";
import { openRunIndex, type RunIndex } from "../index/run-index.ts";

export interface Viewer {
  /** The folder that is viewed. */
  readonly folder: string;
  /** Whether the folder is a single run. An empty folder may become a run or a folder of runs. */
  readonly single: boolean;
  /** Names of the runs' folders, the newest first. */
  names(): string[];
  /** @throws UserError if there is no such run */
  folderOf(name: string): string;
  /** @throws UserError if there is no such run */
  open(name: string): OpenedRun;
  close(): void;
}

export interface OpenedRun {
  readonly name: string;
  readonly index: RunIndex;
  /** Texts of tokens; undefined without a tokenizer in the run folder. */
  pieces(): Pieces | undefined;
}

/** Files of any kind: a run whose files are damaged is listed, with the problem. */
const isRun = (folder: string) =>
  ["config.yaml", "metrics.jsonl", "events.jsonl"].some((name) => statOf(join(folder, name)) !== undefined);

/** Undefined for a file that does not exist, e.g. no longer, or that this user cannot see. */
function statOf(path: string): Stats | undefined {
  try {
    return lstatSync(path, { throwIfNoEntry: false });
  } catch {
    return undefined;
  }
}

/**
 * @param path a run folder, or a folder of runs
 * @param cache the folder of the indexes
 * @throws UserError if it is neither
 */
export function openViewer(path: string, cache: string = defaultCache()): Viewer {
  if (!existsSync(path) || !statSync(path).isDirectory()) {
    throw new UserError(`${path} is neither a run folder nor a folder of runs`, {
      hint: newestRun(),
    });
  }
  const folder = realpathSync(path);
  const isSingle = () => isRun(folder);
  const opened = new Map<string, OpenedRun>();
  removeUnused(cache);

  function names(): string[] {
    if (isSingle()) return [basename(folder)];
    return readdirSync(folder, { withFileTypes: true })
      .filter((entry) => entry.isDirectory() && isRun(join(folder, entry.name)))
      .map(({ name }) => ({ name, time: statOf(join(folder, name))?.birthtimeMs ?? 0 }))
      .sort((left, right) => right.time - left.time || (left.name < right.name ? 1 : -1))
      .map(({ name }) => name);
  }
  // Runs may be created later in a folder without files of another kind.
  const isOther = (entry: Dirent) => entry.isFile() && !entry.name.startsWith(".");
  if (names().length === 0 && readdirSync(folder, { withFileTypes: true }).some(isOther)) {
    throw new UserError(`${path} is not a run folder, and contains none`, {
      hint: newestRun(),
    });
  }

  const isName = (name: string) =>
    isSingle()
      ? name === basename(folder)
      : // A name cannot lead to another folder.
        basename(name) === name &&
        !/^\.{0,2}$|\0/.test(name) &&
        statOf(join(folder, name))?.isDirectory() === true &&
        isRun(join(folder, name));

  function folderOf(name: string): string {
    if (isName(name)) return isSingle() ? folder : join(folder, name);
    throw new UserError(`${isSingle() ? dirname(folder) : folder} has no run ${name}`, { code: "not_found" });
  }

  return {
    folder,
    get single() {
      return isSingle();
    },
    names,
    folderOf,
    open(name) {
      const found = opened.get(name);
      if (!isName(name)) {
        found?.index.close();
        opened.delete(name);
      }
      const at = folderOf(name);
      if (found) return found;
      let pieces: { found: Pieces | undefined } | undefined;
      const run: OpenedRun = {
        name,
        index: openRunIndex(at, cache),
        pieces() {
          if (pieces?.found === undefined) pieces = { found: openPieces(at) };
          return pieces.found;
        },
      };
      opened.set(name, run);
      return run;
    },
    close() {
      for (const { index } of opened.values()) index.close();
      opened.clear();
    },
  };
}

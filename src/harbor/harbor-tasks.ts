/** Folders of Harbor tasks as a dataset. */
import { existsSync, readdirSync } from "node:fs";
import { basename, join, resolve } from "node:path";
import { fromRows } from "../data/from-rows.ts";
import type { Dataset } from "../data/types.ts";
import { UserError } from "../errors.ts";
import { downloadDataset, isDatasetName } from "./download-dataset.ts";
import { readTask } from "./task-files.ts";

/** A task of Harbor, for `harbor()`. */
export interface HarborTask {
  /** Its folder. */
  path: string;
  name: string;
  instruction: string;
}

/** @returns the folders of the tasks in a folder, or the folder itself if it is a task */
export function taskFolders(folder: string): string[] {
  const root = resolve(folder);
  if (existsSync(join(root, "task.toml"))) return [root];
  const names = existsSync(root) ? readdirSync(root).sort() : [];
  const folders = names.map((name) => join(root, name)).filter((path) => existsSync(join(path, "task.toml")));
  if (folders.length > 0) return folders;
  throw new UserError(`${folder} contains no Harbor task (a folder with task.toml)`);
}

export interface HarborTasksOptions {
  /** Of a data set's name: a registry file of Harbor, or its address. Default: Harbor's own registry. */
  registry?: string;
}

/**
 * All tasks of a folder or of a data set's name (`name@version`), checked: an unknown key, a limit that is missing or not positive, or a missing file is an error.
 *
 * @throws UserError listing what is wrong with the tasks
 * @example
 * defineExperiment({ train: harborTasks("./tasks"), workflow: harbor({ agent: "pi" }) })
 */
export function harborTasks(folder: string, { registry }: HarborTasksOptions = {}): Dataset<HarborTask> {
  const isName = isDatasetName(folder) && !existsSync(folder);
  const tasks = (isName ? downloadDataset(folder, registry) : taskFolders(folder)).map(readTask);
  const problems = tasks.flatMap(({ name, problems }) => problems.map((problem) => `${name}: ${problem}`));
  if (problems.length > 0) {
    const more = problems.length > 20 ? `\n  and ${problems.length - 20} more` : "";
    throw new UserError(`the tasks of ${folder} are not valid:\n  ${problems.slice(0, 20).join("\n  ")}${more}`, {
      hint: `"hone tasks check ${folder}" lists everything, and tries each task`,
    });
  }
  const rows = tasks.map(({ path, name, instruction }) => ({ path, name, instruction }));
  return fromRows(isName ? folder : basename(resolve(folder)), rows, { id: ({ name }) => name });
}

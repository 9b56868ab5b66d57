/** Data sets of Harbor by name, as Harbor's own registry client resolves them. */
import { spawnSync } from "node:child_process";
import { fileURLToPath } from "node:url";
import { RunError, UserError } from "../errors.ts";

const script = (path: string) => fileURLToPath(new URL(`../../${path}`, import.meta.url));

/** `name`, `name@version` or `organization/name@version`. */
export const isDatasetName = (text: string) => /^[\w.-]+(\/[\w.-]+)?@[\w.:-]+$/.test(text);

/**
 * Synchronous, so that a script can define its datasets without `await`. Harbor keeps the tasks in its cache.
 *
 * @param registry a JSON file or its address; default: Harbor's own registry
 * @returns the folders of the tasks
 * @throws UserError if the registry does not have the data set; RunError if Harbor cannot be installed
 */
export function downloadDataset(name: string, registry?: string): string[] {
  const setUp = ["environment", "harbor", "--json"];
  const prepared = spawnSync(process.execPath, [script("scripts/setup.mjs"), ...setUp], {
    encoding: "utf8",
    stdio: ["ignore", "pipe", "inherit"],
  });
  const { python, error } = JSON.parse(lastLine(prepared.stdout) || "{}") as { python?: string; error?: string };
  if (python === undefined) throw new RunError(`Harbor cannot be installed: ${error ?? "the set-up ended"}`);
  const args = [script("worker/hone_harbor/dataset.py"), name, ...(registry === undefined ? [] : [registry])];
  const env = { ...process.env, HARBOR_TELEMETRY: "0" };
  const found = spawnSync(python, args, { encoding: "utf8", env, maxBuffer: 2 ** 28 });
  if (found.status === 0) return JSON.parse(lastLine(found.stdout)) as string[];
  throw new UserError(`Harbor's data set ${name} cannot be downloaded: ${lastLine(found.stderr)}`, {
    hint: registry === undefined ? "check the name; { registry } names another registry" : `check ${registry}`,
  });
}

const lastLine = (text: string) => text.trim().split("\n").at(-1) ?? "";

/** Builds an image once for each content of its folder. */
import { createHash } from "node:crypto";
import { readdirSync, readFileSync, readlinkSync, statSync } from "node:fs";
import { join, relative } from "node:path";
import { RunError, UserError } from "../errors.ts";
import type { Engine } from "./engine.ts";

/** Images with this label were built by Hone. */
const imageLabel = "hone.content";

/** SHA-256 of the names, contents and modes of a folder's files. */
export function contentHash(folder: string): string {
  const hash = createHash("sha256");
  const entries = readdirSync(folder, { recursive: true, withFileTypes: true });
  const paths = entries.filter((entry) => !entry.isDirectory()).map((entry) => join(entry.parentPath, entry.name));
  for (const path of paths.sort()) {
    const isLink = entries.some((entry) => entry.isSymbolicLink() && join(entry.parentPath, entry.name) === path);
    const content = isLink ? Buffer.from(readlinkSync(path)) : readFileSync(path);
    hash.update(`${relative(folder, path)}\0${isLink ? "link" : statSync(path).mode & 0o777}\0${content.length}\0`);
    hash.update(content);
  }
  return hash.digest("hex");
}

const building = new Map<string, Promise<string>>();

/**
 * @param folder with a Dockerfile
 * @returns the image's name
 * @throws UserError if the Dockerfile fails, RunError if the disk is full
 */
export function buildImage(engine: Engine, folder: string, timeoutSeconds: number): Promise<string> {
  const content = contentHash(folder).slice(0, 20);
  const known = building.get(content) ?? build(engine, folder, content, timeoutSeconds);
  building.set(content, known);
  // `hone tasks clean` may remove it at any time, so the next call looks again.
  return known.finally(() => building.delete(content));
}

async function build(engine: Engine, folder: string, content: string, timeoutSeconds: number): Promise<string> {
  // Without a registry in its name, podman would look for it on the network.
  const image = `${engine.name === "podman" ? "localhost/" : ""}hone-task:${content}`;
  if ((await engine.run(["image", "inspect", image])).exitCode === 0) return image;
  const args = ["build", "--label", `${imageLabel}=${content}`, "-t", image, folder];
  const { exitCode, stdout, stderr } = await engine.run(args, { timeoutMs: timeoutSeconds * 1000 });
  if (exitCode === 0) return image;
  const output = `${stdout}\n${stderr}`.trim();
  const last = output.split("\n").slice(-15).join("\n  ");
  if (/no space left on device/i.test(output)) {
    const hint = `free some disk, e.g. with "${engine.name} image prune" or "hone tasks clean"`;
    throw new RunError(`the disk is full: the image of ${folder} cannot be built`, { details: last, hint });
  }
  throw new UserError(`the image of ${folder} cannot be built:\n  ${last}`, {
    hint: `try "${engine.name} build ${folder}"`,
  });
}

/** Removes the images that `buildImage` made and no container uses. @returns how many */
export async function removeImages(engine: Engine): Promise<number> {
  const { stdout } = await engine.run(["image", "ls", "-q", "--filter", `label=${imageLabel}`]);
  let removed = 0;
  for (const id of new Set(stdout.split("\n").filter(Boolean))) {
    if ((await engine.run(["rmi", id])).exitCode === 0) removed++;
  }
  return removed;
}

/** The files of a container that differ from its image. */
import type { Trial } from "../trajectories/types.ts";
import type { Engine } from "./engine.ts";

const most = 500;
const kinds = { A: "added", C: "changed", D: "deleted" } as const;

/** Folders that change when a container starts, such as for `/etc/hosts`. */
const ofEngine = new Set(["/etc", "/run"]);

/**
 * Folders of which a file is listed are left out, as are caches.
 * @param without folders that are not listed
 */
export async function changedFiles(
  engine: Engine,
  id: string,
  without: readonly string[] = [],
): Promise<NonNullable<Trial["files"]>> {
  const { exitCode, stdout } = await engine.run(["diff", id], { timeoutMs: 30_000 });
  return exitCode === 0 ? readDiff(stdout, without) : [];
}

export function readDiff(text: string, without: readonly string[]): NonNullable<Trial["files"]> {
  const entries = text.split("\n").flatMap((line) => {
    const [, kind, path] = /^([ACD]) (\/.*)$/.exec(line) ?? [];
    return kind && path ? [{ path, change: kinds[kind as keyof typeof kinds] }] : [];
  });
  const inside = (path: string) =>
    [...without, "/proc", "/sys", "/dev"].some((folder) => `${path}/`.startsWith(`${folder}/`));
  const listed = entries
    .filter(({ path }) => !inside(path) && !/\/(__pycache__|\.cache|node_modules)(\/|$)|\.pyc$/.test(path))
    .sort((left, right) => (left.path < right.path ? -1 : 1));
  const above = (path: string) => path.split("/").map((_, at, parts) => parts.slice(0, at).join("/"));
  const folders = new Set(entries.flatMap(({ path }) => above(path)));
  return listed.filter(({ path }) => !folders.has(path) && !ofEngine.has(path)).slice(0, most);
}

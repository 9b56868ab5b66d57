/** For tests: the trials of one run, or of those that share its temporary folder, and what is left of them. */
import { existsSync, readdirSync } from "node:fs";
import { join } from "node:path";
import type { Engine } from "../containers/engine.ts";

/** @param temporary the runs' TMPDIR */
export function watchTrials(engine: Engine | string, temporary: string) {
  const names = new Set<string>();
  const ownFolders = () =>
    (existsSync(temporary) ? readdirSync(temporary) : []).filter((name) => name.startsWith("hone-harbor-"));
  const running = () => {
    const folders = ownFolders().map((name) => join(temporary, name, "trials"));
    return folders.filter(existsSync).flatMap((folder) => readdirSync(folder));
  };
  const look = () => running().forEach((name) => void names.add(name));
  setInterval(look, 50).unref();

  async function listed(...args: string[]): Promise<string[]> {
    look();
    if (typeof engine === "string") return [];
    const { stdout } = await engine.run(args);
    return stdout.split("\n").filter((line) => [...names].some((name) => line.includes(name)));
  }
  const containers = () => listed("ps", "-a", "--format", "{{.Names}}");
  return {
    names,
    containers,
    ownFolders,
    /** Their containers, networks, volumes, pods and folders. */
    async left(): Promise<string[]> {
      const lists = [containers(), listed("network", "ls"), listed("volume", "ls")];
      if (typeof engine !== "string" && engine.name === "podman") lists.push(listed("pod", "ls"));
      return [...(await Promise.all(lists)).flat(), ...running()];
    },
  };
}

/** Starts containers that wait for commands, and removes them: at the end of this process, or of a killed one at the next start. */
import { spawnSync } from "node:child_process";
import { RunError, UserError } from "../errors.ts";
import { isOwnerGone, ownerMark } from "../files/temporary-names.ts";
import type { Engine } from "./engine.ts";

export interface Started {
  engine: Engine;
  image: string;
  id: string;
  isRunning(): Promise<boolean>;
  /** Ends all of its processes. May be called again. */
  remove(): Promise<void>;
}

const ownerLabel = "hone.owner";
let cleaned: Promise<void> | undefined;
const running = new Map<string, Engine>();
let closes = false;

/** Removes the containers of killed processes. */
async function removeLeft(engine: Engine): Promise<void> {
  const format = "{{.ID}} {{.Names}}";
  const { stdout } = await engine.run(["ps", "-a", "--filter", `label=${ownerLabel}`, "--format", format]);
  const left = stdout.split("\n").map((line) => line.split(" ") as [string, string?]);
  for (const [id] of left.filter(([id]) => id !== "")) {
    const { stdout: owner } = await engine.run(["inspect", "--format", `{{index .Config.Labels "${ownerLabel}"}}`, id]);
    if (isOwnerGone(owner.trim())) await engine.run(["rm", "-f", "-v", id]);
  }
}

/**
 * @param flags of `docker run`, in addition to those that all have
 * @param command what its first process does; by default it waits
 */
export async function startContainer(
  engine: Engine,
  image: string,
  flags: readonly string[],
  command: readonly string[] = ["--entrypoint", "sh", image, "-c", "while :; do sleep 86400; done"],
): Promise<Started> {
  cleaned ??= removeLeft(engine);
  await cleaned;
  const { exitCode, stdout, stderr } = await engine.run([
    ...["run", "-d", "--label", `${ownerLabel}=${ownerMark}`],
    ...["--security-opt", "no-new-privileges"],
    // The first process ignores SIGTERM, for which podman waits 10 seconds.
    ...["--stop-signal", "SIGKILL"],
    ...flags,
    ...command,
  ]);
  const id = stdout.trim().split("\n").at(-1) ?? "";
  if (exitCode !== 0) {
    // podman leaves a container that it created but could not start.
    if (id !== "") await engine.run(["rm", "-f", "-v", id]);
    const text = `a container of ${image} cannot be started: ${stderr.trim().split("\n").at(-1)}`;
    throw /no space left/i.test(stderr) ? new RunError(text, { hint: "the disk is full" }) : new UserError(text);
  }
  if (!closes) process.once("exit", closeAll);
  closes = true;
  running.set(id, engine);
  let removed: Promise<void> | undefined;
  return {
    ...{ engine, image, id },
    isRunning: async () =>
      (await engine.run(["inspect", "--format", "{{.State.Running}}", id])).stdout.trim() === "true",
    remove() {
      removed ??= (async () => {
        running.delete(id);
        await engine.run(["rm", "-f", "-v", id]);
      })();
      return removed;
    },
  };
}

/** Containers that were started before they were needed, and those that no rollout closed. */
function closeAll(): void {
  for (const [id, { name }] of running) spawnSync(name, ["rm", "-f", "-v", id]);
}

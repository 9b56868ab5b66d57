/** A child process of this command line that stops when its parent ends, even by `kill -9`. */
import { type ChildProcess, spawn } from "node:child_process";

const marker = "HONE_STOP_WITH_PARENT";

/** @param args the script of this command line and its words */
export function spawnWithParent(args: readonly string[]): ChildProcess {
  return spawn(process.execPath, [...process.execArgv, ...args], {
    // The channel closes when this process ends.
    stdio: ["inherit", "inherit", "inherit", "ipc"],
    env: { ...process.env, [marker]: "1" },
  });
}

/** In the child: whether this process ends after its parent. */
export const isBesideParent = (): boolean => process.env[marker] !== undefined && process.channel !== undefined;

/** In the child: asks this process to stop, as SIGTERM does, when the channel to its parent closes. */
export function stopWithParent(): void {
  if (!isBesideParent()) return;
  process.once("disconnect", () => process.kill(process.pid, "SIGTERM"));
  process.channel?.unref();
}

/** `hone serve` in its own process, with the memory that it and its worker use. */
import { type ChildProcess, spawn } from "node:child_process";
import { createWriteStream, readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

const project = fileURLToPath(new URL("../..", import.meta.url));

export interface ServeProcess {
  url: string;
  /** Resident bytes; NaN if unknown. */
  memory(): { server: number; worker: number };
  stop(): Promise<void>;
}

/** @param folder gets the server's state and its log */
export async function startServe(model: string, folder: string, more: readonly string[] = []): Promise<ServeProcess> {
  const args = ["--import", "tsx", join(project, "src/apps/cli/main.ts"), "serve", "--port", "0"];
  const child = spawn(process.execPath, [...args, "--model", model, "--state", join(folder, "state"), ...more], {
    cwd: project,
    stdio: ["ignore", "pipe", "pipe"],
    env: { ...process.env, NO_COLOR: "1" },
  });
  const ended = new Promise<void>((resolve) => child.once("close", () => resolve()));
  const url = await addressOf(child, join(folder, "serve.log"));
  return {
    url,
    memory: () => ({ server: residentBytes(child.pid!), worker: residentBytes(workerOf(child.pid!)) }),
    async stop() {
      child.kill("SIGTERM");
      await ended;
    },
  };
}

function addressOf(child: ChildProcess, logFile: string): Promise<string> {
  const log = createWriteStream(logFile);
  let text = "";
  return new Promise((resolve, reject) => {
    const read = (chunk: Buffer) => {
      log.write(chunk);
      text += chunk;
      const found = /serving .* at (http:\S+)/.exec(text);
      if (found) resolve(found[1]!);
    };
    child.stdout!.on("data", read);
    child.stderr!.on("data", read);
    child.once("close", () => reject(new Error(`hone serve ended:\n${text}`)));
  });
}

function workerOf(server: number): number {
  const worker = readdirSync("/proc").find((name) => {
    if (!/^\d+$/.test(name)) return false;
    try {
      const parent = Number(readFileSync(`/proc/${name}/stat`, "utf8").split(") ")[1]?.split(" ")[1]);
      return parent === server && readFileSync(`/proc/${name}/cmdline`, "utf8").includes("hone_worker");
    } catch {
      return false; // It has ended in the meantime.
    }
  });
  return Number(worker);
}

function residentBytes(pid: number): number {
  try {
    return 1024 * Number(/^VmRSS:\s+(\d+) kB/m.exec(readFileSync(`/proc/${pid}/status`, "utf8"))?.[1]);
  } catch {
    return Number.NaN;
  }
}

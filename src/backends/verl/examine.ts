/** The checks of `hone doctor` before verl's workers start: the environment, the Ray cluster, shared memory. */
import { execFile } from "node:child_process";
import { existsSync, statfsSync } from "node:fs";
import { connect } from "node:net";
import { promisify } from "node:util";
import { formatBytes } from "../../base/files.ts";
import { hasNvidiaGpu, installedPython, setupCommand, verlEnvironment } from "../../base/python.ts";
import type { ComposedTree } from "../backend.ts";
import type { Finding } from "../engine.ts";
import { verlEngineOptions } from "./options.ts";

/** Ray keeps objects in shared memory. If less is free, it uses files. */
const sharedBytes = 1e9;

export async function examine(composed: ComposedTree, cores: number): Promise<Finding[]> {
  const { ray, ranks, usesGpu, rollouts } = verlEngineOptions(composed, cores);
  const packages = ["verl", "ray", "torch", "transformers", ...(usesGpu && rollouts ? [rollouts] : [])];
  return [await environment(packages), await cluster(ray.address, ranks, cores), ...sharedMemory()];
}

async function environment(packages: readonly string[]): Promise<Finding> {
  const name = "verl";
  const given = process.env.HONE_VERL_PYTHON;
  const python = given || installedPython(verlEnvironment());
  if (python === undefined) {
    return { name, detail: "its environment is not installed", fix: setupCommand("environment", verlEnvironment()) };
  }
  try {
    const { stdout } = await promisify(execFile)(python, ["-c", versionsProgram, ...packages]);
    return { name, detail: `${stdout.trim()} in ${python}` };
  } catch (error) {
    const reason = (error as { stderr?: string }).stderr?.trim().split("\n").at(-1) ?? String(error);
    const fix = given
      ? `install ${packages.join(", ")} in it, or unset HONE_VERL_PYTHON and run ${setupCommand("environment", verlEnvironment())}`
      : `remove the folder of ${python} and run ${setupCommand("environment", verlEnvironment())}`;
    return { name, detail: `${python} cannot be used: ${reason}`, fix };
  }
}

const versionsProgram = `
import sys
from importlib.metadata import version
print(", ".join(f"{name} {version(name)}" for name in sys.argv[1:]))
`;

async function cluster(address: unknown, ranks: number, cores: number): Promise<Finding> {
  const name = "ray";
  const workers = `${ranks} ${ranks === 1 ? "worker" : "workers"}`;
  if (typeof address !== "string" || address === "local") {
    const detail = `Hone starts a cluster on this machine for ${workers}; ${cores} cores, ${hasNvidiaGpu() ? "an NVIDIA GPU" : "no NVIDIA GPU"}`;
    return ranks <= cores || hasNvidiaGpu()
      ? { name, detail }
      : { name, detail: `${detail}; several workers would share a core`, fix: `trainer.n_gpus_per_node=${cores}` };
  }
  if (address === "auto") return { name, detail: `${workers} on the cluster that runs on this machine` };
  const [, host, port] = /^(?:ray:\/\/)?\[?([^\]]+?)\]?:(\d+)$/.exec(address) ?? [];
  if (host === undefined) {
    return {
      name,
      detail: `${address} is not an address`,
      fix: "ray_kwargs.ray_init.address=HOST:6379, the address that `ray start --head` prints",
    };
  }
  const refused = await unreachable(host, Number(port));
  return refused === undefined
    ? { name, detail: `${workers} on the cluster at ${address}, which accepts connections` }
    : {
        name,
        detail: `the cluster at ${address} does not answer: ${refused}`,
        fix: `on its head: ray start --head --port=${port}`,
      };
}

/** @returns why a connection fails, or undefined */
function unreachable(host: string, port: number): Promise<string | undefined> {
  return new Promise((resolve) => {
    const socket = connect({ host, port, timeout: 5000 });
    const end = (reason?: string) => {
      socket.destroy();
      resolve(reason);
    };
    socket.once("connect", () => end());
    socket.once("timeout", () => end("no answer after 5 s"));
    socket.once("error", (error: NodeJS.ErrnoException) => end(error.code ?? error.message));
  });
}

function sharedMemory(): Finding[] {
  if (!existsSync("/dev/shm")) return [];
  const { bavail, bsize } = statfsSync("/dev/shm");
  const free = bavail * bsize;
  const detail = `${formatBytes(free)} free in /dev/shm`;
  if (free >= sharedBytes) return [{ name: "shared", detail }];
  return [{ name: "shared", detail: `${detail}; Ray becomes slow`, fix: "start the container with --shm-size=4g" }];
}

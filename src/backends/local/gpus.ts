/** The NVIDIA GPUs of this machine, as nvidia-smi describes them. */
import { execFile } from "node:child_process";
import { promisify } from "node:util";

export interface Gpu {
  name: string;
  /** Bytes. */
  free: number;
  total: number;
}

const run = promisify(execFile);

/** @returns none if there is no nvidia-smi */
export async function listGpus(): Promise<Gpu[]> {
  const query = ["--query-gpu=name,memory.free,memory.total", "--format=csv,noheader,nounits"];
  return run("nvidia-smi", query).then(
    ({ stdout }) => parseGpus(stdout),
    () => [],
  );
}

/** @returns how the first GPUs are connected to each other, such as NV18 or PHB; empty if unknown */
export async function listLinks(count: number): Promise<string[]> {
  return run("nvidia-smi", ["topo", "-m"]).then(
    ({ stdout }) => parseLinks(stdout, count),
    () => [],
  );
}

/** @param csv lines of name, free and total memory in MiB */
export function parseGpus(csv: string): Gpu[] {
  const lines = csv.split("\n").filter((line) => line.trim() !== "");
  return lines.map((line) => {
    const [name = "", free, total] = line.split(",").map((part) => part.trim());
    return { name, free: Number(free) * 2 ** 20, total: Number(total) * 2 ** 20 };
  });
}

/** @param matrix a row for each GPU: its name, then its link to each GPU */
export function parseLinks(matrix: string, count: number): string[] {
  const rows = matrix.split("\n").filter((line) => /^GPU\d+\s/.test(line));
  const links = rows.slice(0, count).flatMap((row) =>
    row
      .trim()
      .split(/\s+/)
      .slice(1, count + 1),
  );
  return [...new Set(links)].filter((link) => link !== "X").sort();
}

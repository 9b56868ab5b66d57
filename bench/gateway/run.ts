/**
 * Benchmark of chat completions through Hone's gateway, rLLM's gateway and LiteLLM, measured one after the other in one run
 * with the same client and the same inference server, which answers immediately.
 *
 *   npm run bench -- gateway [--seconds 4] [--rounds 3] [--connections 1,64,512] [--skip-peers] [--one-core]
 *     [--python PYTHON] [--only NAME]
 *
 * Prints requests per second and the latency (p50, p99) that each gateway adds to that of the inference server, and then
 * compares them with the goals. Each value is the median of the rounds.
 *
 * - Hone and rLLM's gateway are measured in front of the inference server, without traces and with traces in SQLite. Hone
 *   then renders, tokenizes and records tokens. Hone is also measured with an engine in its own process.
 * - Client and inference server are plain sockets that send prepared bytes. Hone's gateway runs from the build.
 * - `--one-core`: with one connection, only one of client, gateway and server works at a time. This option pins all of them
 *   to one core (if the system has `taskset`), so that no call waits until another core wakes up. It slows down a gateway
 *   that continues to work after its answer.
 * - `--python`: a Python with the packages in bench/gateway/requirements.txt. By default, one is created in .hone.
 */
import { type ChildProcess, execFileSync, spawn } from "node:child_process";
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { cpus, loadavg, tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";
import { freePort } from "../../src/base/processes.ts";
import type { Load, Measured } from "./load.ts";

const { values: flags } = parseArgs({
  options: {
    seconds: { type: "string", default: "4" },
    rounds: { type: "string", default: "3" },
    connections: { type: "string", default: "1,64,512" },
    "skip-peers": { type: "boolean", default: false },
    python: { type: "string" },
    only: { type: "string" },
    "one-core": { type: "boolean", default: false },
  },
});
const here = fileURLToPath(new URL(".", import.meta.url));
const counts = flags.connections.split(",").map(Number);
const folder = mkdtempSync(join(tmpdir(), "hone-bench-gateway-"));
const children = new Set<ChildProcess>();

interface Goal {
  /** Compared with rLLM's gateway with the same trace store, or with the inference server itself. */
  against: "rLLM" | "direct";
  connections: number;
  /** rLLM: minimum ratio of requests per second. direct: maximum milliseconds added at p99. */
  limit: number;
}

const rllmName = "rLLM's gateway";
const inSqlite = ", traces in SQLite";
const goals: Goal[] = [
  { against: "rLLM", connections: 1, limit: 3 },
  { against: "rLLM", connections: 64, limit: 10 },
  { against: "direct", connections: 64, limit: 50 },
];

const allCores = `0-${cpus().length - 1}`;

interface Target {
  name: string;
  port: number;
  path: (connection: number) => string;
  start: () => Promise<ChildProcess | undefined>;
}

try {
  const upstream = await freePort();
  await startNode("fake-vllm.ts", [String(upstream)]);
  const targets = await listTargets(upstream);
  console.log(
    `${cpus().length} cores, load average ${loadavg()[0]!.toFixed(1)} at the start; ${flags.rounds} rounds of ${flags.seconds} s each`,
  );
  const results = new Map<string, Measured[]>();
  for (const target of targets) {
    if (flags.only !== undefined && target.name !== "direct" && !target.name.includes(flags.only)) continue;
    const child = await target.start();
    const measured: Measured[] = [];
    for (const connections of counts) {
      const paths = Array.from({ length: connections }, (_, index) => target.path(index));
      const before = child === undefined ? 0 : cpuSeconds(child);
      const together = connections === 1 && flags["one-core"];
      if (flags["one-core"]) for (const { pid } of children) keepTo(together ? "0" : allCores, pid!);
      const rounds: Measured[] = [];
      while (rounds.length < Number(flags.rounds)) {
        const warmUpSeconds = Math.min(Number(flags.seconds), rounds.length === 0 ? 3 : 1);
        rounds.push(
          await runLoad(
            { port: target.port, paths, connections, seconds: Number(flags.seconds), warmUpSeconds },
            together,
          ),
        );
      }
      const answers = rounds.reduce((sum, round) => sum + round.answers, 0);
      rounds.sort((left, right) => left.requestsPerSecond - right.requestsPerSecond);
      measured.push(rounds[Math.floor(rounds.length / 2)]!);
      const cpu = child === undefined ? 0 : (cpuSeconds(child) - before) / answers;
      print(target.name, connections, measured.at(-1)!, results.get("direct")?.[measured.length - 1], cpu);
    }
    results.set(target.name, measured);
    if (child) await stop(child);
  }
  compare(results);
} finally {
  for (const child of children) child.kill("SIGKILL");
  rmSync(folder, { recursive: true, force: true });
}

async function listTargets(upstream: number): Promise<Target[]> {
  const url = `http://127.0.0.1:${upstream}`;
  const hone = async (name: string, kind: string, traces: string): Promise<Target> => {
    const port = await freePort();
    const start = () => startNode("hone-gateway.ts", [String(port), kind, url, traces, folder]);
    return { name, port, path: (index) => `/s/bench-${index}/a/0/v1/chat/completions`, start };
  };
  const targets: Target[] = [
    { name: "direct", port: upstream, path: () => "/v1/chat/completions", start: async () => undefined },
    await hone("Hone, same server", "upstream", "memory"),
    await hone(`Hone, same server${inSqlite}`, "upstream", "sqlite"),
    await hone("Hone, engine in its process", "engine", "memory"),
  ];
  if (flags["skip-peers"]) return targets;
  const python = flags.python ?? preparePython();
  const bin = (name: string) => join(python, "..", name);
  const litellm = await freePort();
  const config = join(folder, "litellm.yaml");
  writeFileSync(
    config,
    `model_list:\n  - model_name: policy\n    litellm_params: {model: openai/policy, api_base: "${url}/v1", api_key: none}\ngeneral_settings:\n  master_key: sk-bench\n`,
  );
  const rllm = async (name: string, store: string[]): Promise<Target> => {
    const port = await freePort();
    const args = ["--host", "127.0.0.1", "--port", String(port), "--worker", `${url}/v1`, "--log-level", "warning"];
    return {
      ...{ name, port, path: (index) => `/sessions/bench-${index}/v1/chat/completions` },
      start: () => start(bin("rllm-model-gateway"), [...args, "--store", ...store], port),
    };
  };
  const litellmArgs = ["--config", config, "--host", "127.0.0.1", "--port", String(litellm), "--num_workers", "1"];
  return [
    ...targets,
    await rllm(rllmName, ["memory"]),
    await rllm(`${rllmName}${inSqlite}`, ["sqlite", "--db-path", join(folder, "rllm.db")]),
    {
      name: "LiteLLM",
      port: litellm,
      path: () => "/v1/chat/completions",
      start: () => start(bin("litellm"), litellmArgs, litellm),
    },
  ];
}

/** @returns the Python that has the peers */
function preparePython(): string {
  const environment = join(here, "..", "..", ".hone", "bench-gateway");
  const python = join(environment, "bin", "python");
  if (!existsSync(python)) {
    console.log("installing rLLM's gateway and LiteLLM once, with pip");
    execFileSync("python3", ["-m", "venv", environment], { stdio: "inherit" });
    execFileSync(python, ["-m", "pip", "install", "--quiet", "-r", join(here, "requirements.txt")], {
      stdio: "inherit",
    });
  }
  return python;
}

function startNode(script: string, args: string[]): Promise<ChildProcess> {
  const child = spawn(process.execPath, ["--import", "tsx", join(here, script), ...args], {
    stdio: ["ignore", "pipe", "inherit"],
  });
  children.add(child);
  return new Promise((resolve, reject) => {
    child.stdout.once("data", () => resolve(child));
    child.once("close", () => reject(new Error(`${script} ended before it was ready`)));
  });
}

async function start(command: string, args: string[], port: number): Promise<ChildProcess> {
  const child = spawn(command, args, { stdio: "ignore" });
  children.add(child);
  for (let tries = 0; tries < 240; tries++) {
    if (child.exitCode !== null) throw new Error(`${command} ended with ${child.exitCode}`);
    const answer = await fetch(`http://127.0.0.1:${port}/health`).catch(() => undefined);
    await answer?.body?.cancel();
    if (answer !== undefined) return child;
    await sleep(500);
  }
  throw new Error(`${command} did not answer within two minutes`);
}

async function stop(child: ChildProcess): Promise<void> {
  const closed = new Promise((resolve) => child.once("close", resolve));
  child.kill("SIGKILL");
  await closed;
  children.delete(child);
}

function runLoad(load: Load, onFirstCore: boolean): Promise<Measured> {
  const command = [process.execPath, "--import", "tsx", join(here, "load.ts"), JSON.stringify(load)];
  if (onFirstCore) command.unshift("taskset", "--cpu-list", "0");
  const child = spawn(command[0]!, command.slice(1), { stdio: ["ignore", "pipe", "inherit"] });
  let output = "";
  child.stdout.setEncoding("utf8").on("data", (text: string) => {
    output += text;
  });
  return new Promise((resolve, reject) => {
    child.once("close", (code) => {
      if (code === 0) resolve(JSON.parse(output) as Measured);
      else reject(new Error(`the client ended with ${code}`));
    });
  });
}

function print(name: string, connections: number, measured: Measured, direct: Measured | undefined, cpu: number): void {
  const { requestsPerSecond, p50, p99, errors } = measured;
  const added = direct === undefined ? "" : `, adds p50 ${ms(p50 - direct.p50)} p99 ${ms(p99 - direct.p99)}`;
  const bad = errors === 0 ? "" : `, ${errors} ERRORS`;
  const cost = cpu === 0 ? "" : `, ${ms(cpu * 1000)} of processor each`;
  const rate = requestsPerSecond.toFixed(0).padStart(6);
  console.log(
    `${name.padEnd(36)} ${String(connections).padStart(4)} connections ${rate} requests/s, p50 ${ms(p50)} p99 ${ms(p99)}${added}${cost}${bad}`,
  );
}

/** Compares each variant of Hone with each goal, and prints the other ratios. */
function compare(results: ReadonlyMap<string, Measured[]>): void {
  const of = (name: string, connections: number) => results.get(name)?.[counts.indexOf(connections)];
  const hone = [...results.keys()].filter((name) => name.startsWith("Hone"));
  const ratio = (name: string, peer: string, connections: number) => {
    const [own, other] = [of(name, connections), of(peer, connections)];
    return own && other ? own.requestsPerSecond / other.requestsPerSecond : undefined;
  };
  for (const name of hone) {
    const rllm = name.endsWith(inSqlite) ? `${rllmName}${inSqlite}` : rllmName;
    for (const { against, connections, limit } of goals) {
      const [own, direct] = [of(name, connections), of("direct", connections)];
      const value = against === "direct" ? own && direct && own.p99 - direct.p99 : ratio(name, rllm, connections);
      if (value === undefined) continue;
      const met = against === "direct" ? value < limit : value >= limit;
      const text =
        against === "direct"
          ? `adds ${ms(value)} at p99; the goal is below ${limit} ms`
          : `${value.toFixed(1)}x the requests per second of ${rllm}; the goal is ${limit}x`;
      console.log(`${met ? "met   " : "MISSED"} ${name}, ${connections} connections: ${text}`);
    }
    for (const peer of [rllm, "LiteLLM"]) {
      const hasGoal = (count: number) => peer === rllm && goals.some((goal) => goal.connections === count);
      const without = counts.filter((count) => !hasGoal(count));
      const ratios = without.flatMap((count) => {
        const value = ratio(name, peer, count);
        return value === undefined ? [] : [`${value.toFixed(1)}x at ${count}`];
      });
      if (ratios.length > 0) console.log(`       ${name}: ${ratios.join(", ")} of ${peer}'s requests per second`);
    }
  }
}

/** Pins all threads of a process to these cores. */
function keepTo(cores: string, pid: number): void {
  execFileSync("taskset", ["--all-tasks", "--cpu-list", "--pid", cores, String(pid)], { stdio: "ignore" });
}

/** The processor time used so far; 0 if unknown. Unlike latency, it does not depend on other programs. */
function cpuSeconds({ pid }: ChildProcess): number {
  try {
    const fields = readFileSync(`/proc/${pid}/stat`, "utf8").split(") ")[1]!.split(" ");
    return (Number(fields[11]) + Number(fields[12])) / 100;
  } catch {
    return 0;
  }
}

function ms(milliseconds: number | null): string {
  // JSON has no NaN: nothing was answered in time.
  if (milliseconds === null) return "none";
  return `${milliseconds.toFixed(Math.abs(milliseconds) < 10 ? 2 : 0)} ms`;
}

/**
 * `npm run bench -- viewer`: the viewer's server on a generated run of 100,000 episodes. Prints the median and the worst
 * time of each request, the time to index everything, and the most memory that the server used.
 */
import { spawn } from "node:child_process";
import { mkdtempSync, readdirSync, readFileSync, rmSync, statSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { parseArgs } from "node:util";
import { generateRun, generateStep } from "../../src/apps/view/generate-run.fixture.ts";
import type { EpisodeList } from "../../src/apps/view/queries/episodes.ts";
import type { RunDetail } from "../../src/apps/view/queries/run.ts";

const { values: flags } = parseArgs({
  options: { episodes: { type: "string", default: "100000" }, requests: { type: "string", default: "15" } },
});
const perStep = 256;
const steps = Math.ceil(Number(flags.episodes) / perStep);
const root = mkdtempSync(join(tmpdir(), "hone-bench-viewer-"));
const run = join(root, "run");

try {
  const made = performance.now();
  generateRun(run, { steps, tasks: perStep / 8, rollouts: 8, tokens: 60 });
  generateStep(run, steps + 1, { tasks: 1, rollouts: 2, tokens: 30_000 });
  const bytes = readdirSync(join(run, "episodes")).reduce(
    (sum, name) => sum + statSync(join(run, "episodes", name)).size,
    0,
  );
  console.log(`generated ${steps * perStep} episodes, ${(bytes / 1e6).toFixed(0)} MB, in ${seconds(made)}`);

  const server = spawn(
    process.execPath,
    ["--import", "tsx", "src/apps/cli/main.ts", "view", run, "--no-open", "--port", "0"],
    { env: { ...process.env, XDG_CACHE_HOME: join(root, "cache") }, stdio: ["ignore", "pipe", "inherit"] },
  );
  try {
    const api = `${await urlOf(server.stdout)}api`;
    const started = performance.now();
    const first = performance.now();
    await get(`${api}/runs/run`);
    console.log(`first answer, while the run is indexed: ${seconds(first)}`);
    for (;;) {
      const { indexing } = await get<RunDetail>(`${api}/runs/run`);
      if (indexing === undefined) break;
    }
    console.log(`everything is indexed after ${seconds(started)}`);
    const filtered = (filter: string) => `${api}/runs/run/episodes?filter=${encodeURIComponent(filter)}`;
    const { total } = await get<EpisodeList>(`${api}/runs/run/episodes`);
    console.log(`${total} episodes`);
    for (const [name, url] of [
      ["run", `${api}/runs/run`],
      ["list", `${api}/runs/run/episodes?limit=100`],
      ["list, sorted by reward, page 500", `${api}/runs/run/episodes?sort=reward&limit=100&offset=50000`],
      ["filter: reward<0.2 and termination=env_done", filtered("reward<0.2 and termination=env_done")],
      ["filter: reward<0.2 and role=judge", filtered("reward<0.2 and role=judge")],
      ['filter: text~"sorry" (most episodes)', filtered('text~"sorry"')],
      ["filter: message~refused", filtered("message~refused")],
      ["filter: explanation~expected (most episodes)", filtered("explanation~expected")],
      ['filter: explanation~"expected 31"', filtered('explanation~"expected 31"')],
      ["search", `${api}/runs/run/search?q=sorry+column`],
      ["group", `${api}/runs/run/group?step=1&task=arith/3`],
      ["failures", `${api}/runs/run/failures`],
      ["curves", `${api}/runs/run/curves`],
      ["episode of 30,000 tokens", `${api}/runs/run/episodes/t${steps + 1}.1`],
    ] as const) {
      const times: number[] = [];
      for (let request = 0; request < Number(flags.requests); request++) {
        const start = performance.now();
        await get(url);
        times.push(performance.now() - start);
      }
      times.sort((left, right) => left - right);
      const [median, worst] = [times[Math.floor(times.length / 2)]!, times.at(-1)!];
      console.log(
        `${name.padEnd(46)} median ${median.toFixed(0).padStart(5)} ms   worst ${worst.toFixed(0).padStart(5)} ms`,
      );
    }
    console.log(`memory of the server: ${maxMemory(server.pid!)} at most`);
  } finally {
    server.kill();
  }
} finally {
  rmSync(root, { recursive: true, force: true });
}

function seconds(since: number): string {
  return `${((performance.now() - since) / 1000).toFixed(1)} s`;
}

async function get<Answer>(url: string): Promise<Answer> {
  const response = await fetch(url);
  const text = await response.text();
  if (!response.ok) throw new Error(`${response.status} ${text}`);
  return JSON.parse(text) as Answer;
}

/** From the line that the viewer prints. */
function urlOf(output: NodeJS.ReadableStream): Promise<string> {
  let text = "";
  return new Promise((resolve, reject) => {
    output.on("data", (piece: Buffer) => {
      text += String(piece);
      const [url] = /http:\S+/.exec(text) ?? [];
      if (url !== undefined) resolve(url);
    });
    output.on("end", () => reject(new Error(`the viewer did not start: ${text}`)));
  });
}

function maxMemory(pid: number): string {
  const found = /VmHWM:\s*(\d+) kB/.exec(readFileSync(`/proc/${pid}/status`, "utf8"));
  return found === null ? "unknown" : `${(Number(found[1]) / 1000).toFixed(0)} MB`;
}

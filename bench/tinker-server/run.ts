/**
 * Benchmark of `hone serve` in a process of its own: under many clients, and compared with the same engine without HTTP.
 *
 *   npm run bench -- tinker-server [--only load|overhead] [--seconds 300] [--samplers 64] [--trainers 4] [--steps 16] [--control]
 *     [key=value ...]   settings of the first example
 *
 * The load part prints the clients' answers, the latency of heartbeats, and the memory of server and worker over time. The
 * overhead part alternates steps of the first example with and without HTTP, and prints seconds per step and the median of
 * their ratios. With `--control` both sides run in process, which shows the noise of the measurement.
 */
import { mkdtempSync, rmSync } from "node:fs";
import { cpus, loadavg, tmpdir } from "node:os";
import { join } from "node:path";
import { parseArgs } from "node:util";
import { runLoad } from "./load.ts";
import { runOverhead } from "./overhead.ts";

const { values: flags, positionals: overrides } = parseArgs({
  allowPositionals: true,
  options: {
    only: { type: "string" },
    seconds: { type: "string", default: "300" },
    samplers: { type: "string", default: "64" },
    trainers: { type: "string", default: "4" },
    steps: { type: "string", default: "16" },
    control: { type: "boolean", default: false },
  },
});
const folder = mkdtempSync(join(tmpdir(), "hone-bench-tinker-server-"));
const parts = {
  load: () =>
    runLoad({
      ...{ folder, seconds: Number(flags.seconds) },
      ...{ samplers: Number(flags.samplers), trainers: Number(flags.trainers) },
    }),
  overhead: () => runOverhead({ folder, steps: Number(flags.steps), control: flags.control, overrides }),
};
try {
  console.log(`${cpus().length} cores, load average ${loadavg()[0]!.toFixed(1)} at the start`);
  for (const [name, run] of Object.entries(parts)) {
    if (flags.only !== undefined && flags.only !== name) continue;
    await run();
  }
} finally {
  rmSync(folder, { recursive: true, force: true });
}

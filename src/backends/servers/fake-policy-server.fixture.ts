/** A fake inference server with its control routes: it loads adapters and weights that `exportingEngine` publishes. */
import { EventEmitter, once } from "node:events";
import { rmSync } from "node:fs";
import { dirname, join } from "node:path";
import { lora } from "../../../conformance/tools.ts";
import { temporaryFolder } from "../../base/files.ts";
import { tabularEngine } from "../../testing/tabular-engine.ts";
import type { Engine, LearningEngine, Sampler, WeightGroup } from "../engine.ts";
import { composeEngine } from "../engine-parts.ts";
import { fakeServer, type ServerKind } from "./fake-server.fixture.ts";
import { type ServerOptions, servedPolicies } from "./policies.ts";

const tabular = tabularEngine({ alphabet: "abcdefghijklmnopqrstuvwxyz" });

/** What learners broadcast, as a folder: "state". */
const broadcasts = new EventEmitter();

/** Exports and broadcasts states of the tabular engine. */
export const exportingEngine: Engine = {
  ...tabular,
  async createPolicy(spec) {
    const { learner, sampler } = await tabular.createPolicy(spec);
    const openGroup = async (size: number): Promise<WeightGroup> => ({
      id: "group",
      size,
      weights: { names: ["all"], dtypes: ["float32"], shapes: [[2]] },
      join: async () => {},
      async send() {
        const folder = temporaryFolder("hone-broadcast-");
        await learner.saveState(join(folder, "state"));
        broadcasts.emit("state", join(folder, "state"));
      },
    });
    return { sampler, learner: { ...learner, openGroup, export: (dir) => learner.saveState(dir) } };
  },
};

/** The trainer, with policies that servers sample. */
export const servedEngine = (trainer: LearningEngine, options: ServerOptions): Engine =>
  composeEngine({ trainer, samplers: servedPolicies(trainer, options) });

export const encode = (text: string) => Array.from(text, (_, index) => index % 20);

/** What the server does wrong. */
interface Fault {
  /** Acknowledges weights without using them. */
  ignores?: boolean;
  /** The label of the weights, regardless of their values. */
  label?: string;
  refuses?: boolean;
  tokens?: number[];
  maxLength?: number;
  model?: Engine;
}

export interface FakePolicyServer {
  url: string;
  /** What was asked of the control routes, in order, such as "load v1". */
  requests: string[];
  adapters: Map<string, { path: string; sampler: Sampler }>;
  /** Path of the weights that were sent last. */
  weights: string;
  fault: Fault;
  /** Forgets all weights. */
  restart(): Promise<void>;
  close(): void;
}

const routes = {
  vllm: {
    load: "/v1/load_lora_adapter",
    unload: "/v1/unload_lora_adapter",
    pause: "/pause?mode=keep",
    weights: "/collective_rpc",
    resume: "/resume",
    info: "/weight_info",
    sleep: "/sleep?level=1",
    wake: "/wake_up",
  },
  sglang: {
    load: "/load_lora_adapter",
    unload: "/unload_lora_adapter",
    pause: "/pause_generation",
    weights: "/update_weights_from_disk",
    resume: "/continue_generation",
    info: "/model_info",
    sleep: "/release_memory_occupation",
    wake: "/resume_memory_occupation",
  },
};

/** @param generates the server has vLLM's `/inference/v1/generate` */
export async function fakePolicyServer(kind: ServerKind, generates = false): Promise<FakePolicyServer> {
  const route = routes[kind];
  const adapters: FakePolicyServer["adapters"] = new Map();
  const freshBase = async () => (await tabular.createPolicy({ adapter: { kind: "none" } })).sampler;
  let base = await freshBase();
  let label = "default";
  let isPaused = false;

  async function samplerOf(path: string, adapter: "lora" | "full"): Promise<Sampler> {
    const spec = adapter === "lora" ? lora() : ({ kind: "full" } as const);
    const theirs = await (server.fault.model ?? tabular).createPolicy({ adapter: spec });
    await theirs.sampler.load(await theirs.learner.loadState(path, { optimizer: false }));
    return theirs.sampler;
  }

  const ok = { text: '{"success": true}' };
  async function control(path: string, body: Record<string, unknown>) {
    const { fault, requests } = server;
    const name = String(body.lora_name);
    switch (path) {
      case "/v1/models": {
        const loaded = [...adapters].map(([id, adapter]) => ({ id, root: adapter.path, parent: "base" }));
        const own = { id: "base", root: "/models/base", parent: null, max_model_len: fault.maxLength ?? 512 };
        return { text: JSON.stringify({ object: "list", data: [own, ...loaded] }) };
      }
      case "/tokenize":
        return { text: JSON.stringify({ tokens: fault.tokens ?? encode(String(body.prompt)) }) };
      case route.unload:
        requests.push(`unload ${name.split("-").at(-1)}`);
        return adapters.delete(name) ? ok : { status: 404, text: "no such adapter" };
      case route.load: {
        if (fault.refuses) return { status: 404, text: '{"detail":"Not Found"}' };
        requests.push(`load ${name.split("-").at(-1)}`);
        const path = String(body.lora_path);
        const last = [...adapters.values()].at(-1);
        adapters.set(name, fault.ignores && last ? last : { path, sampler: await samplerOf(path, "lora") });
        return ok;
      }
      case route.weights: {
        if (!isPaused) return { status: 400, text: "not paused" };
        if (fault.refuses) return { status: 500, text: "cannot read the weights" };
        const { weights_path: path = body.model_path } = (body.kwargs ?? {}) as Record<string, unknown>;
        server.weights = String(path);
        requests.push(`weights ${String(path).split("-").at(-1)}`);
        if (!fault.ignores) base = await samplerOf(String(path), "full");
        if (kind === "sglang") label = fault.label ?? String(body.weight_version);
        return ok;
      }
      case "/init_weight_transfer_engine":
        requests.push("join");
        return fault.refuses ? { status: 500, text: "no transfer" } : ok;
      case "/start_weight_update":
        return isPaused ? ok : { status: 400, text: "not paused" };
      case "/update_weights": {
        if (fault.refuses) return { status: 500, text: "cannot receive" };
        const [path] = await once(broadcasts, "state");
        if (!fault.ignores) base = await samplerOf(path, "full");
        rmSync(dirname(path), { recursive: true });
        return ok;
      }
      case "/finish_weight_update":
        label = fault.label ?? String(body.weight_version);
        requests.push(`received v${label}`);
        return ok;
      case "/update_weight_version":
        label = fault.label ?? String(body.new_version);
        return ok;
      case route.info:
        return { text: JSON.stringify({ weight_version: label }) };
      case route.pause:
      case route.resume:
        isPaused = path === route.pause;
        return ok;
      case route.sleep:
      case route.wake:
        requests.push(path === route.sleep ? "sleep" : "wake");
        return ok;
      default:
        return path.startsWith("/reset_prefix_cache") ? ok : undefined;
    }
  }

  const { url, close } = await fakeServer(
    kind,
    (model) => (model === "base" ? base : adapters.get(model)?.sampler),
    control,
    { label: () => label, generates },
  );
  const server: FakePolicyServer = {
    url,
    requests: [],
    adapters,
    weights: "",
    fault: {},
    async restart() {
      adapters.clear();
      base = await freshBase();
      label = "default";
    },
    close,
  };
  return server;
}

/** The engine that a configuration names. The only place that lists the backends. */
import { backendSettings } from "../../config/compose/backends.ts";
import type { Backend } from "../../config/schema/about.ts";
import type { Config } from "../../config/schema.ts";
import { UserError } from "../../errors.ts";
import type { BackendDescriptor, EngineHooks } from "../descriptor.ts";
import type { AdapterSpec, Capabilities, Engine } from "../engine.ts";
import { scoringCapabilities } from "../servers/scoring/scoring-capabilities.ts";
import { local } from "./local.ts";
import { tinker } from "./tinker.ts";

const descriptors: Partial<Record<Backend, BackendDescriptor>> = { local, tinker };

/** The backends that runs can use. */
export const builtBackends = Object.keys(descriptors) as Backend[];

/** @throws UserError when the backend is not built */
export function capabilitiesOf(config: Config, backend: Backend = config.rllm.backend): Capabilities {
  const capabilities = descriptorOf(backend).capabilities(config);
  return usesScoringServers(config) ? scoringCapabilities(capabilities) : capabilities;
}

/** @throws UserError when the backend is not built */
export function isRemote(config: Config): boolean {
  return descriptorOf(config.rllm.backend).isRemote?.(config) ?? false;
}

/**
 * Checks what can be checked before anything is loaded.
 *
 * @throws UserError when the backend is not built, its own settings cannot work, or it cannot train the adapter
 */
export function requireBackend(config: Config): BackendDescriptor {
  const descriptor = descriptorOf(config.rllm.backend);
  descriptor.check?.(config);
  requireAdapter(config, descriptor);
  return descriptor;
}

function descriptorOf(backend: Backend): BackendDescriptor {
  const descriptor = descriptors[backend];
  if (descriptor !== undefined) return descriptor;
  throw new UserError(`rllm.backend=${backend}: ${backendSettings[backend].notBuilt}`, {
    hint: `use ${builtBackends.map((name) => `rllm/backend=${name}`).join(" or ")}`,
  });
}

function requireAdapter(config: Config, { capabilities }: BackendDescriptor): void {
  const { engine, adapters } = capabilities(config);
  if (adapters.includes(adapterSpec(config).kind)) return;
  throw new UserError(`model.lora_rank=0: the ${engine} backend trains LoRA adapters, not all weights`, {
    hint: "model.lora_rank=32, or rllm/backend=local",
  });
}

/** @throws UserError when the model or device named in the configuration cannot be used; RunError when the engine dies */
export async function openEngine(config: Config, hooks: EngineHooks = {}): Promise<Engine> {
  const engine = await requireBackend(config).open(config, hooks);
  if (!usesScoringServers(config)) return engine;
  const { scoringServers } = await import("./scoring-servers.ts");
  return scoringServers(engine, config, hooks);
}

const usesScoringServers = ({ rllm: { reward } }: Config) => reward.model !== null && reward.use_engine;

/** The backend whose service holds the state at this address; undefined for a folder. */
export function backendHolding(address: string): Backend | undefined {
  for (const [name, { holdsState }] of Object.entries(descriptors)) {
    if (holdsState?.(address)) return name as Backend;
  }
  return undefined;
}

/** The adapter a configuration asks for. */
export function adapterSpec(config: Config): AdapterSpec {
  const { lora_rank: rank, lora_alpha: alpha, train_attn, train_mlp, train_unembed } = config.model;
  if (rank === 0) return { kind: "full" };
  const trains = { attn: train_attn, mlp: train_mlp, unembed: train_unembed };
  const targets = (["attn", "mlp", "unembed"] as const).filter((target) => trains[target]);
  return { kind: "lora", rank, alpha, targets, seed: config.rllm.trainer.seed };
}

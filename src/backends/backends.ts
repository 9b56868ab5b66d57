/**
 * The list of backends: the engine, and the chat of its model, that a configuration names. The only place that knows
 * their names.
 */
import { loadChat } from "../chat/chat.ts";
import { loadRenderer } from "../chat/renderers.ts";
import type { Chat } from "../chat/types.ts";
import { isModulePath } from "../config/schema/about.ts";
import type { Backend } from "../config/schema/backends.ts";
import type { Config } from "../config/schema.ts";
import type { BackendDescriptor, ComposedTree, EngineHooks } from "./backend.ts";
import type { Capabilities, Engine, Finding } from "./engine.ts";
import { composeEngine, withScores } from "./engine-parts.ts";
import { local } from "./local/backend.ts";
import type { Rule } from "./rule.ts";
import { tinkerBackend } from "./tinker/backend.ts";
import { verl } from "./verl/backend.ts";

// The engine that a configuration names. The only place that lists the backends.

const tinker = tinkerBackend(async (config, hooks) => {
  const { openOwnTinkerEngine } = await import("../apps/server/in-process.ts");
  return openOwnTinkerEngine(config, hooks);
});

const descriptors: Readonly<Record<Backend, BackendDescriptor>> = { local, tinker, verl };

export function capabilitiesOf(config: Config, backend: Backend = config.rllm.backend): Capabilities {
  const capabilities = descriptorOf(backend).capabilities(config);
  return usesScoringServers(config) ? withScores(capabilities) : capabilities;
}

export function isRemote(config: Config): boolean {
  return descriptorOf(config.rllm.backend).isRemote?.(config) ?? false;
}

/** Why a setting of the backend's own sections has no effect. */
export function reasonUnused({ config, tree }: Omit<ComposedTree, "origins">, key: string): string | undefined {
  return descriptorOf(config.rllm.backend).reasonUnused?.(key, tree);
}

/** What can be found before the engine opens, for `hone doctor`. */
export async function examineBackend(composed: ComposedTree): Promise<Finding[]> {
  return (await descriptorOf(composed.config.rllm.backend).examine?.(composed)) ?? [];
}

/** The backend's own rules about settings. */
export const backendRules = (config: Config): readonly Rule[] => descriptorOf(config.rllm.backend).rules ?? [];

/**
 * Checks what rules about settings do not say, such as addresses and keys of services, before anything is loaded.
 *
 * @throws UserError when the backend cannot work
 */
export function requireBackend(composed: ComposedTree): BackendDescriptor {
  const descriptor = descriptorOf(composed.config.rllm.backend);
  descriptor.check?.(composed);
  return descriptor;
}

const descriptorOf = (backend: Backend): BackendDescriptor => descriptors[backend];

/** @throws UserError when the model or device named in the configuration cannot be used; RunError when the engine dies */
export async function openEngine(composed: ComposedTree, hooks: EngineHooks = {}): Promise<Engine> {
  const { config } = composed;
  const engine = await requireBackend(composed).open(composed, hooks);
  if (!usesScoringServers(config)) return engine;
  const { scoringServers } = await import("./servers/start-servers.ts");
  return composeEngine({ trainer: engine, scorers: scoringServers(engine.model, config, hooks) });
}

const usesScoringServers = ({ rllm: { reward } }: Config) => reward.model !== null && reward.use_engine;

/** The backend whose service holds the state at this address; undefined for a folder. */
export function backendHolding(address: string): Backend | undefined {
  for (const [name, { holdsState }] of Object.entries(descriptors)) {
    if (holdsState?.(address)) return name as Backend;
  }
  return undefined;
}

/**
 * @param log called for settings that have no effect with this model
 * @throws UserError as `loadChat` does
 */
export async function openChat(
  directory: string,
  { rllm, rollout_engine }: Config,
  log?: (line: string) => void,
): Promise<Chat> {
  const { renderer_name: name } = rollout_engine;
  const isFile = name !== null && isModulePath(name);
  return loadChat(directory, {
    rendererName: isFile ? null : name,
    renderer: isFile ? await loadRenderer(name) : undefined,
    disableThinking: rllm.disable_thinking,
    accumulateReasoning: rllm.accumulate_reasoning,
    controlTokensInText: rllm.chat.control_tokens_in_text,
    reasoningEffort: rollout_engine.reasoning_effort,
    log,
  });
}

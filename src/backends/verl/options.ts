/** The options of the verl engine, from a composed configuration. */
import { verlSections } from "../../config/compose/sync/verl-keys.ts";
import { layerOf, type Origin } from "../../config/tree/origin.ts";
import { valueAt } from "../../config/tree/value-at.ts";
import { isObject } from "../../is-object.ts";
import type { ComposedTree, EngineHooks } from "../descriptor.ts";
import { expectedValues } from "./expected-values.ts";
import { checkRollouts, rolloutKind, samplesWithVerl, usesGpu } from "./rollouts.ts";

type Tree = Record<string, unknown>;

/** verl knows fewer schedules, and Hone sets the learning rate of each step. */
const schedule = "actor_rollout_ref.actor.optim.lr_scheduler_type";

export interface VerlEngineOptions {
  /** The model's name, as the user gave it. */
  name: string;
  /** verl's whole configuration for its workers, without the model's folder. */
  config: Tree;
  /** The arguments of `ray.init`; without `address`, Hone starts a cluster. */
  ray: Tree;
  /** The values that the workers must have, by verl's names. */
  expected: ReadonlyMap<string, unknown>;
  /** Number of workers on all nodes. */
  ranks: number;
  usesGpu: boolean;
  /** The kind of verl's rollout servers, if they sample. */
  rollouts: "vllm" | "sglang" | undefined;
  hooks: Pick<EngineHooks, "logFile" | "onStatus" | "warn" | "media">;
}

/** @throws UserError when verl's rollout servers cannot be used as they are set */
export function verlEngineOptions(
  composed: ComposedTree,
  cores: number,
  hooks: VerlEngineOptions["hooks"] = {},
): VerlEngineOptions {
  const { config, tree, origins } = composed;
  const trainer = sectionAt(tree, "trainer");
  const requested = Number(trainer.n_gpus_per_node);
  const onGpu = usesGpu(tree);
  const perNode = onGpu ? requested : ranksPerNode(requested, origins.get("trainer.n_gpus_per_node"), cores);
  if (perNode !== requested) {
    hooks.warn?.(
      `trainer.n_gpus_per_node: the default of ${requested} workers is lowered to ${perNode}, one for each core, because this machine has no GPU that verl uses`,
    );
  }
  const ranks = Number(trainer.nnodes) * perNode;
  const rollouts = samplesWithVerl(tree) ? rolloutKind(tree) : undefined;
  if (rollouts) checkRollouts(tree, ranks);
  const own = Object.fromEntries(Object.entries(tree).filter(([name]) => isVerl(name)));
  return {
    name: config.model.name,
    config: merged(own, {
      // As on the other backends: log-probabilities of the model itself, before temperature and filters.
      actor_rollout_ref: {
        rollout: { logprobs_mode: "raw_logprobs", ...(onGpu ? {} : naiveWeights(composed)) },
        ...(valueAt(tree, schedule) === undefined ? {} : { actor: { optim: { lr_scheduler_type: "constant" } } }),
      },
      trainer: { n_gpus_per_node: perNode },
      // Hone asks the teachers.
      distillation: { enabled: false },
    }),
    ray: withoutNulls(sectionAt(tree, "ray_kwargs.ray_init")),
    expected: expectedValues(composed),
    ranks,
    usesGpu: onGpu,
    rollouts,
    hooks,
  };
}

/** Composition chooses nccl for asynchronous training, which needs GPUs. A value that the user set is left to the driver. */
function naiveWeights({ origins }: ComposedTree): Tree {
  const isChosen = origins.get("actor_rollout_ref.rollout.checkpoint_engine.backend")?.kind === "synced";
  return isChosen ? { checkpoint_engine: { backend: "naive" } } : {};
}

/** A critic starts from the run's own model. */
export const withModel = (config: Tree, folder: string): Tree =>
  merged(config, {
    actor_rollout_ref: { model: { path: folder } },
    critic: { model: { path: folder, tokenizer_path: folder } },
  });

const isVerl = (name: string) => name === "data" || verlSections.some((section) => section === name);

/** Without a GPU, verl's default of 8 workers per node is lowered to the number of cores. */
function ranksPerNode(requested: number, origin: Origin | undefined, cores: number): number {
  const isDefault = origin === undefined || layerOf(origin) === 0;
  return isDefault ? Math.min(requested, cores) : requested;
}

/** Removes keys that are null, because in verl null means that an argument is not passed. */
function withoutNulls(section: Tree): Tree {
  const given = Object.entries(section).filter(([, value]) => value !== null);
  return Object.fromEntries(given.map(([name, value]) => [name, isObject(value) ? withoutNulls(value) : value]));
}

const sectionAt = (tree: Tree, path: string) => (valueAt(tree, path) ?? {}) as Tree;

/** A copy of `base` with the values of `over`. */
function merged(base: Tree, over: Tree): Tree {
  const copy = { ...base };
  for (const [name, value] of Object.entries(over)) {
    copy[name] = isObject(value) ? merged((base[name] ?? {}) as Tree, value) : value;
  }
  return copy;
}

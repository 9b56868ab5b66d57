/** The facts of each backend that the configuration needs. Its engine is described in `src/backends/NAME/backend.ts`. */

interface BackendFacts {
  /** Sections at the root whose keys are of the backend's own tree, not only of the schema. */
  ownSections?: readonly string[];
  /** Keys that set another one, unless that is set too: `[from, to]`. */
  forwarded?: readonly (readonly [from: string, to: string])[];
  /** The setting for higher precision. */
  precision?: { key: string; highest: string };
}

const facts = {
  local: { precision: { key: "local.dtype", highest: "float32" } },
  tinker: { forwarded: [["training.default_local_dir", "rllm.trainer.run_dir"]] },
  // src/config/verl-keys.ts has the keys and the rules of its tree.
  verl: {
    ownSections: [
      ...["actor_rollout_ref", "algorithm", "trainer", "critic", "reward", "reward_model", "reward_manager"],
      ...["custom_reward_function", "sandbox_fusion", "distillation", "global_profiler", "transfer_queue"],
      ...["ray_kwargs", "rollout", "async_training", "model_engine", "skip", "data"],
    ],
  },
} as const satisfies Readonly<Record<string, BackendFacts>>;

export type Backend = keyof typeof facts;

export const backendFacts: Readonly<Record<Backend, BackendFacts>> = facts;

/** Their names. */
export const backends = Object.keys(facts) as [Backend, ...Backend[]];

/** A whole engine without Python: a bigram model over characters, for tests of trainers, losses and rewards that learn. */
import type { Capabilities, Engine } from "../backends/engine.ts";
import { requireCreatable } from "../backends/learner-spec.ts";
import { UserError } from "../errors.ts";
import { type CharacterChat, characterChat } from "./character-chat.ts";
import { tabularCritic } from "./tabular-critic.ts";
import { tabularPolicy } from "./tabular-policy.ts";

export interface TabularEngineOptions {
  /** The characters that the model can read and write, or a list that also has whole replies; a handful keeps the table small. */
  alphabet: Iterable<string>;
  /** The base model's logit of the token `next` after `previous`. Default 0: every token is as likely as any other. */
  logit?: (next: number, previous: number) => number;
}

const capabilities: Capabilities = {
  engine: "tabular",
  sampleLogprobs: "raw",
  adapters: ["lora", "full", "none"],
  // The engine's only base model.
  loraTargets: ["attn", "mlp", "unembed"],
  outputs: ["logprobs", "entropy", "values", "concentration", "targets", "most_likely", "draws"],
  sampling: [
    ...(["top_p", "top_k", "min_p", "stop_ids", "stop_strings", "seed"] as const),
    ...(["prompt_logprobs", "top_logprobs", "tempered_logprobs"] as const),
    ...(["abort", "tokens_streamed"] as const),
  ],
  multiplePolicies: true,
  otherModels: false,
  frozenSampler: { lora: true, full: true },
  exports: [],
  images: false,
};

/**
 * The model knows the previous token only, so it can learn which characters to answer with, not to read a prompt.
 * Log-probabilities, entropies and gradients are exact in float64.
 *
 * @example
 * const engine = tabularEngine({ alphabet: "abc" });
 * const policy = await engine.createPolicy({ adapter: { kind: "full" } });
 */
export function tabularEngine({
  alphabet,
  logit = () => 0,
}: TabularEngineOptions): Engine & { readonly chat: CharacterChat } {
  const chat = characterChat(alphabet);
  const size = chat.vocabularySize;
  const base = Float64Array.from({ length: size * size }, (_, index) => logit(index % size, Math.floor(index / size)));
  return {
    chat,
    capabilities,
    versions: {},
    model: {
      name: "tabular",
      directory: "",
      architecture: "bigram",
      parameters: size * size,
      vocabularySize: size,
      maxLength: Number.MAX_SAFE_INTEGER,
      eosTokenIds: [chat.eosId],
      dtype: "float64",
      device: "cpu",
      attention: "packed",
    },
    createPolicy: async ({ adapter }) => tabularPolicy(base, chat, adapter),
    async createLearner(spec) {
      const { adapter, head } = spec;
      requireCreatable(capabilities, spec);
      if (head === undefined) return tabularPolicy(base, chat, adapter).learner;
      if (adapter.kind !== "none") return tabularCritic(size);
      throw new UserError("the base model cannot have a value head, because it is not trained");
    },
    stats: async () => ({}),
    waitingFor: () => [],
    close: async () => {},
  };
}

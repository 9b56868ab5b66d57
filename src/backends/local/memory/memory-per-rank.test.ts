import { expect, test } from "vitest";
import { memoryPerRank, type ShardingSettings } from "./memory-per-rank.ts";
import type { ModelShapes } from "./model-shapes.ts";

const [hiddenSize, innerSize, vocabularySize, layers] = [256, 704, 4096, 6];

/** A Llama with 8 query heads and 4 key-value heads. */
function llama(): ModelShapes {
  const layer: Record<string, number[]> = {
    "self_attn.q_proj": [hiddenSize, hiddenSize],
    "self_attn.k_proj": [hiddenSize / 2, hiddenSize],
    "self_attn.v_proj": [hiddenSize / 2, hiddenSize],
    "self_attn.o_proj": [hiddenSize, hiddenSize],
    "mlp.gate_proj": [innerSize, hiddenSize],
    "mlp.up_proj": [innerSize, hiddenSize],
    "mlp.down_proj": [hiddenSize, innerSize],
    input_layernorm: [hiddenSize],
    post_attention_layernorm: [hiddenSize],
  };
  const weights = new Map([
    ["model.embed_tokens.weight", [vocabularySize, hiddenSize]],
    ["lm_head.weight", [vocabularySize, hiddenSize]],
    ["model.norm.weight", [hiddenSize]],
  ]);
  for (let index = 0; index < layers; index++) {
    for (const [name, shape] of Object.entries(layer)) weights.set(`model.layers.${index}.${name}.weight`, shape);
  }
  return { weights, layers, hiddenSize, innerSize, vocabularySize };
}

const settings: ShardingSettings = {
  ...{ processes: 2, sharding: "fsdp", offloadParameters: false, offloadOptimizer: false, weightBytes: 4 },
  ...{ loraRank: 0, targets: ["attn", "mlp"], gradientCheckpointing: false, microBatchTokens: 512, chunkSize: 256 },
};

const needed = (more: Partial<ShardingSettings>) => memoryPerRank(llama(), { ...settings, ...more });

test("FSDP needs what the tensors of a rank were counted to take", () => {
  // `worker/tests/count_memory.py fsdp 2 full FOLDER` with this model.
  const counted = { weights: 13_048_584, gradients: 13_048_320, optimizer: 26_096_640 };
  for (const [name, bytes] of Object.entries(counted)) {
    expect(Math.abs(needed({})[name as keyof typeof counted] / bytes - 1), name).toBeLessThan(0.001);
  }
});

test("each stage shards more than the one before", () => {
  const total = (sharding: ShardingSettings["sharding"]) => {
    const { weights, gathered, gradients, optimizer } = needed({ sharding, processes: 8 });
    return weights + gathered + gradients + optimizer;
  };
  const totals = (["zero1", "zero2", "zero3", "fsdp"] as const).map(total);
  expect(totals).toEqual(totals.toSorted((a, b) => b - a));
  expect(new Set(totals).size).toBe(4);
});

test("offloading moves the moments, the master weights and the gradients of a step to the CPU", () => {
  const elements = needed({}).weights / 2;
  expect(needed({ offloadOptimizer: true }).offloaded).toBe(needed({}).optimizer);
  expect(needed({ sharding: "zero2", offloadOptimizer: true }).offloaded).toBe(8 * elements);
  expect(needed({ offloadParameters: true }).offloaded).toBe(needed({}).weights);
});

test("LoRA trains two small matrices for each adapted layer", () => {
  const perLayer = 4 * hiddenSize + 2 * hiddenSize * 1.5 + 3 * (hiddenSize + innerSize);
  const lora = needed({ loraRank: 8 });
  expect(lora.gradients).toBe((4 * 8 * layers * perLayer) / 2);
  expect(needed({ loraRank: 8, targets: ["unembed"] }).gradients).toBe((4 * 8 * (hiddenSize + vocabularySize)) / 2);
  expect(lora.weights).toBeGreaterThan(needed({}).weights);
});

test("activations grow with the micro-batch and shrink with gradient checkpointing", () => {
  const logits = 3 * 256 * vocabularySize * 4;
  expect(needed({}).activations).toBe(512 * layers * (12 * hiddenSize + 4 * innerSize) * 4 + logits);
  expect(needed({ gradientCheckpointing: true }).activations).toBe(512 * layers * hiddenSize * 4 + logits);
});

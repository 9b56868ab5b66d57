/** How much memory each process of a sharded model needs, from the shapes of its weights. */
import type { LoraTarget } from "../../engine.ts";
import type { ModelShapes } from "./model-shapes.ts";

export interface ShardingSettings {
  processes: number;
  sharding: "zero1" | "zero2" | "zero3" | "fsdp";
  offloadParameters: boolean;
  offloadOptimizer: boolean;
  /** Bytes of a weight that the model computes with: 4 or 2. */
  weightBytes: number;
  /** 0: all weights are trained. */
  loraRank: number;
  targets: readonly LoraTarget[];
  gradientCheckpointing: boolean;
  microBatchTokens: number;
  chunkSize: number;
}

/** Bytes. */
export interface MemoryPerRank {
  /** Weights that the rank keeps. */
  weights: number;
  /** Weights of other ranks while a layer is computed. */
  gathered: number;
  gradients: number;
  /** Adam's moments, and float32 master weights where they are kept apart. */
  optimizer: number;
  /** An estimate of what a micro-batch keeps for the backward pass. */
  activations: number;
  /** The part of the above that is offloaded to CPU memory. */
  offloaded: number;
}

const float32 = 4;

/**
 * Model states as in ZeRO (Rajbhandari et al., 2020, section 5), with P weights, T of them trained, b bytes per weight and N
 * ranks. Trained weights, gradients and two moments are float32:
 *
 * | | weights | gradients | optimizer |
 * |---|---|---|---|
 * | zero1 | b P | b T | 12 T / N |
 * | zero2 | b P | 4 T / N | 12 T / N |
 * | zero3 | b P / N | 4 T / N | 12 T / N |
 * | fsdp | (b (P - T) + 4 T) / N | 4 T / N | 8 T / N |
 *
 * DeepSpeed keeps float32 master weights (4 T / N of the optimizer's) even if the weights are float32. Activations are those of a
 * transformer layer without attention scores (Korthikanti et al., 2022): 12 hidden and 4 inner vectors per token, or one
 * hidden vector with gradient checkpointing; and three copies of a chunk of logits.
 */
export function memoryPerRank(model: ModelShapes, settings: ShardingSettings): MemoryPerRank {
  const { processes: n, sharding, weightBytes: b, loraRank } = settings;
  const total = sum([...model.weights.values()].map(elements));
  const trained = loraRank === 0 ? total : adapterElements(model, settings);
  const frozen = loraRank === 0 ? 0 : total;
  const isWhole = sharding === "zero1" || sharding === "zero2";
  const weights =
    sharding === "fsdp" ? (b * frozen + float32 * trained) / n : (b * (frozen + trained)) / (isWhole ? 1 : n);
  const gradients = sharding === "zero1" ? b * trained : (float32 * trained) / n;
  const optimizer = ((sharding === "fsdp" ? 8 : 12) * trained) / n;
  const offloaded =
    (settings.offloadParameters ? weights : 0) +
    (settings.offloadOptimizer ? optimizer + (isWhole || sharding === "zero3" ? (float32 * trained) / n : 0) : 0);
  return {
    weights,
    gathered: isWhole ? 0 : (b * gatheredElements(model) * (n - 1)) / n,
    gradients,
    optimizer,
    activations: activations(model, settings),
    offloaded,
  };
}

const inLayer = /\.(?:layers|h|blocks)\.\d+\./;
const feedForward = /\.(?:mlp|feed_forward|ffn)\./;

/** Elements of the low-rank matrices `[rank, inputs]` and `[outputs, rank]` of each adapted layer. */
function adapterElements({ weights, hiddenSize, vocabularySize }: ModelShapes, settings: ShardingSettings): number {
  const layers = [...weights].filter(([name, shape]) => {
    const kind = feedForward.test(name) ? "mlp" : "attn";
    return shape.length === 2 && inLayer.test(name) && settings.targets.includes(kind);
  });
  const output = settings.targets.includes("unembed") ? hiddenSize + vocabularySize : 0;
  return settings.loraRank * (output + sum(layers.map(([, shape]) => sum(shape))));
}

/** The largest layer, and what is outside of the layers. */
function gatheredElements({ weights }: ModelShapes): number {
  const units = new Map<string, number>();
  for (const [name, shape] of weights) {
    const unit = inLayer.exec(name)?.[0] ?? "";
    units.set(unit, (units.get(unit) ?? 0) + elements(shape));
  }
  const outside = units.get("") ?? 0;
  units.delete("");
  return outside + Math.max(0, ...units.values());
}

function activations(
  { layers, hiddenSize, innerSize, vocabularySize }: ModelShapes,
  settings: ShardingSettings,
): number {
  const { gradientCheckpointing, microBatchTokens, chunkSize, weightBytes } = settings;
  const perToken = gradientCheckpointing ? hiddenSize : 12 * hiddenSize + 4 * innerSize;
  const logits = 3 * Math.min(chunkSize, microBatchTokens) * vocabularySize * float32;
  return microBatchTokens * layers * perToken * weightBytes + logits;
}

const elements = (shape: readonly number[]) => shape.reduce((product, size) => product * size, 1);

const sum = (values: readonly number[]) => values.reduce((total, value) => total + value, 0);

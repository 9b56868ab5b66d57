/** README.md of an export: what was trained, how, and how to load it, from the checkpoint and its run alone. */
import { basename } from "node:path";
import { loraTargets } from "../backends/engine.ts";
import type { BaseModel } from "../backends/local/models.ts";
import type { Config } from "../config/schema.ts";
import type { StepMetrics } from "../tracking/events.ts";
import { formatCount, formatNumber, formatRate } from "../tracking/numbers.ts";
import { stepSummary } from "../tracking/step-summary.ts";

export interface CardFacts {
  as: "adapter" | "merged";
  base: BaseModel;
  /** Whether the model has a vision part. */
  readsImages: boolean;
  step: number;
  config: Config;
  /** Metrics of the run up to `step`, oldest first; empty if the run folder is missing. */
  steps: readonly StepMetrics[];
  validations: readonly StepMetrics[];
  /** The runs whose weights it started from, the first run first. */
  ancestors: readonly Ancestor[];
}

/** A run that another one started from, up to the checkpoint that it started from. */
export interface Ancestor {
  config: Config;
  step: number;
}

/** By `training.source`. */
const kinds = {
  rollouts: { done: "trained by reinforcement learning", tag: "reinforcement-learning" },
  rows: { done: "fine-tuned on examples", tag: "sft" },
  pairs: { done: "trained on preferences", tag: "dpo" },
} as const;

export function modelCard(facts: CardFacts): string {
  const { as, base, readsImages, config, step } = facts;
  const model = config.model.name;
  const isAdapter = as === "adapter";
  const name = base.id ?? basename(model);
  const difference =
    base.difference && `The training used ${base.difference}. With the original weights, outputs differ slightly.`;
  return `---
${base.id === undefined ? "" : `base_model: ${base.id}\n`}library_name: ${isAdapter ? "peft" : "transformers"}
pipeline_tag: ${readsImages ? "image-text-to-text" : "text-generation"}
tags: [${[...(isAdapter ? ["lora"] : []), ...tagsOf(facts)].join(", ")}]
---

# ${name}, ${kinds[config.training.source].done}

${isAdapter ? "A LoRA adapter (PEFT)" : "A full model"} made with Hone from \`${name}\`, after ${step} training steps.
${difference ? `\n${difference}\n` : ""}
## Usage

\`\`\`python
${isAdapter ? loadAdapter(base.id ?? model, readsImages) : loadMerged(readsImages)}
\`\`\`

## Training
${madeFrom(facts)}
| setting | value |
|---|---|
${settings(config)}
${rewards(facts)}`;
}

const tagsOf = ({ ancestors, config }: CardFacts) => [
  ...new Set([...ancestors.map((one) => one.config), config].map(({ training }) => kinds[training.source].tag)),
];

/** The chain of runs, one line each; empty if it started from the base model. */
function madeFrom({ ancestors, config, step }: CardFacts): string {
  if (ancestors.length === 0) return "";
  const lines = [...ancestors, { config, step }].map(({ config: { training, data, rllm }, step: steps }, index) => {
    const files = training.source === "rollouts" ? [] : [data.train_files ?? []].flat();
    const on = files.length === 0 ? "" : ` (${files.map((file) => `\`${basename(file)}\``).join(", ")})`;
    return `${index + 1}. \`${rllm.trainer.experiment_name}\`: ${kinds[training.source].done}${on}, ${steps} steps`;
  });
  return `\nThe weights were trained in ${lines.length} runs, each from those of the run before:\n\n${lines.join("\n")}\n`;
}

const classOf = (readsImages: boolean) => (readsImages ? "AutoModelForImageTextToText" : "AutoModelForCausalLM");
const readerOf = (readsImages: boolean) => (readsImages ? "AutoProcessor" : "AutoTokenizer");

/** transformers' processors of images need torchvision, and SmolVLM's num2words. */
const loadReader = (readsImages: boolean, folder = "path/to/this/folder") =>
  readsImages
    ? `processor = AutoProcessor.from_pretrained(${JSON.stringify(folder)})  # requires torchvision; SmolVLM also num2words`
    : `tokenizer = AutoTokenizer.from_pretrained("path/to/this/folder")`;

/** AutoProcessor needs a config.json, which an adapter's folder does not have. */
const loadAdapter = (base: string, readsImages: boolean) => `from peft import PeftModel
from transformers import ${classOf(readsImages)}, ${readerOf(readsImages)}

base = ${classOf(readsImages)}.from_pretrained(${JSON.stringify(base)})
model = PeftModel.from_pretrained(base, "path/to/this/folder")
${loadReader(readsImages, base)}`;

const loadMerged = (readsImages: boolean) => `from transformers import ${classOf(readsImages)}, ${readerOf(readsImages)}

model = ${classOf(readsImages)}.from_pretrained("path/to/this/folder")
${loadReader(readsImages)}`;

function settings({ model, training, data, rllm, rollout_engine, sft, dpo }: Config): string {
  const parts = loraTargets.filter((part) => model[`train_${part}`]);
  const lora = `LoRA, rank ${model.lora_rank}, alpha ${model.lora_alpha}, on ${parts.join(", ")}`;
  const { temperature, max_tokens } = rllm.rollout.train;
  const { loss_fn: loss, adv_estimator: estimator } = rllm.algorithm;
  const renderer = rollout_engine.renderer_name;
  const bySource = {
    rollouts: [
      ["advantage estimator", `\`${estimator}\``],
      ["loss", loss && `\`${loss}\``],
      ["rollouts per task", rllm.rollout.n],
      ["sampling", `temperature ${temperature}, at most ${max_tokens} tokens per reply`],
    ],
    rows: [
      ["loss", `\`${sft.loss_type}\`, ${sft.reduction}`],
      ["learned parts", `\`${sft.train_on}\``],
    ],
    pairs: [["loss", `\`${dpo.loss_type}\`, beta ${dpo.beta}`]],
  }[training.source];
  const rows = [
    ["trained weights", model.lora_rank === 0 ? "all" : lora],
    ...bySource,
    ["learning rate", `${formatRate(training.learning_rate)}, ${training.lr_schedule}`],
    [`${training.source === "rollouts" ? "tasks" : training.source} per step`, data.train_batch_size],
    ["chat format", renderer && `\`rollout_engine.renderer_name=${renderer}\``],
    ["seed", rllm.trainer.seed],
  ];
  return rows.flatMap(([label, value = null]) => (value === null ? [] : [`| ${label} | ${value} |`])).join("\n");
}

const shownSteps = 10;

function rewards({ steps, validations, config }: CardFacts): string {
  const known = steps.flatMap(({ step, metrics }) => {
    const { reward } = stepSummary(metrics);
    return reward === undefined || !Number.isFinite(reward) ? [] : [{ step, reward }];
  });
  if (known.length === 0) return "";
  const apart = Math.max(1, (known.length - 1) / (shownSteps - 1));
  const indices = new Set(Array.from({ length: shownSteps }, (_, index) => Math.round(index * apart)));
  const shown = known.filter((_, index) => indices.has(index));
  const row = (cells: readonly (string | number)[]) => `| ${cells.join(" | ")} |\n`;
  return `
## Rewards during training

Mean reward of the training rollouts at ${formatCount(shown.length)} of ${formatCount(known.length)} steps:

${row(["step", ...shown.map(({ step }) => step)])}|---|${"---|".repeat(shown.length)}
${row(["reward", ...shown.map(({ reward }) => formatNumber(reward))])}${validationText(validations, config.training.best_metric)}`;
}

function validationText(validations: readonly StepMetrics[], metric: string): string {
  const measured = validations.filter(({ metrics }) => Object.hasOwn(metrics, metric));
  const ends = [...new Set([...measured.slice(0, 1), ...measured.slice(-1)])].map(({ step, metrics }) => {
    return `${formatNumber(metrics[metric] ?? Number.NaN)} ${step === 0 ? "before training" : `after step ${step}`}`;
  });
  return ends.length === 0 ? "" : `\n\`${metric}\` on the validation tasks: ${ends.join(", ")}.\n`;
}

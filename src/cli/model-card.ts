/** README.md of an export: what was trained, how, and how to load it. States only what the checkpoint and its run say. */
import { basename } from "node:path";
import type { BaseModel } from "../backends/local/models.ts";
import type { Config } from "../config/schema.ts";
import type { StepMetrics } from "../tracking/events.ts";
import { formatCount, formatNumber, formatRate } from "../tracking/numbers.ts";
import { stepSummary } from "../tracking/step-summary.ts";

export interface CardFacts {
  as: "adapter" | "merged";
  /** As the configuration names it. */
  model: string;
  base: BaseModel;
  step: number;
  config: Config;
  /** Of the run up to `step`, oldest first; empty where the run folder is gone. */
  steps: readonly StepMetrics[];
  validations: readonly StepMetrics[];
}

export function modelCard(facts: CardFacts): string {
  const { as, base, model, config } = facts;
  const name = base.id ?? model;
  const short = base.id ?? basename(model);
  return [
    ...frontMatter(facts),
    `# ${short}, trained by reinforcement learning`,
    "",
    `${as === "adapter" ? "A LoRA adapter (PEFT)" : "A full model"} made with Hone from \`${short}\`, after ${facts.step} training steps.`,
    ...(base.difference === undefined
      ? []
      : ["", `The training used ${base.difference}. Over the original weights outputs differ slightly.`]),
    "",
    "## Load it",
    "",
    "```python",
    ...(as === "adapter" ? loadAdapter(name) : loadMerged),
    "```",
    "",
    "## Training",
    "",
    "| setting | value |",
    "|---|---|",
    ...settings(config).map(([label, value]) => `| ${label} | ${value} |`),
    ...rewards(facts),
    "",
  ].join("\n");
}

const frontMatter = ({ as, base }: CardFacts) => [
  "---",
  ...(base.id === undefined ? [] : [`base_model: ${base.id}`]),
  `library_name: ${as === "adapter" ? "peft" : "transformers"}`,
  "pipeline_tag: text-generation",
  `tags: [${as === "adapter" ? "lora, " : ""}reinforcement-learning]`,
  "---",
  "",
];

const loadAdapter = (base: string) => [
  "from peft import PeftModel",
  "from transformers import AutoModelForCausalLM, AutoTokenizer",
  "",
  `base = AutoModelForCausalLM.from_pretrained(${JSON.stringify(base)})`,
  'model = PeftModel.from_pretrained(base, "path/to/this/folder")',
  'tokenizer = AutoTokenizer.from_pretrained("path/to/this/folder")',
];

const loadMerged = [
  "from transformers import AutoModelForCausalLM, AutoTokenizer",
  "",
  'model = AutoModelForCausalLM.from_pretrained("path/to/this/folder")',
  'tokenizer = AutoTokenizer.from_pretrained("path/to/this/folder")',
];

function settings({ model, training, data, rllm, rollout_engine }: Config): [label: string, value: string][] {
  const parts = (["attn", "mlp", "unembed"] as const).filter((part) => model[`train_${part}`]);
  const weights =
    model.lora_rank === 0 ? "all" : `LoRA, rank ${model.lora_rank}, alpha ${model.lora_alpha}, on ${parts.join(", ")}`;
  const { temperature, max_tokens } = rllm.rollout.train;
  return [
    ["trained weights", weights],
    ["advantage estimator", `\`${rllm.algorithm.adv_estimator}\``],
    ...(rllm.algorithm.loss_fn === null ? [] : [["loss", `\`${rllm.algorithm.loss_fn}\``] as [string, string]]),
    ["learning rate", `${formatRate(training.learning_rate)}, ${training.lr_schedule}`],
    ["tasks per step", String(data.train_batch_size)],
    ["rollouts per task", String(rllm.rollout.n)],
    ["sampling", `temperature ${temperature}, at most ${max_tokens} tokens per reply`],
    ...(rollout_engine.renderer_name === null
      ? []
      : [["chat format", `\`rollout_engine.renderer_name=${rollout_engine.renderer_name}\``] as [string, string]]),
    ["seed", String(rllm.trainer.seed)],
  ];
}

const shownSteps = 10;

function rewards({ steps, validations, config }: CardFacts): string[] {
  const known = steps.flatMap(({ step, metrics }) => {
    const { reward } = stepSummary(metrics);
    return reward === undefined || !Number.isFinite(reward) ? [] : [{ step, reward }];
  });
  if (known.length === 0) return [];
  const apart = Math.max(1, (known.length - 1) / (shownSteps - 1));
  const shown = Array.from(
    { length: Math.min(shownSteps, known.length) },
    (_, index) => known[Math.round(index * apart)]!,
  );
  const { best_metric: metric } = config.training;
  const measured = validations.filter(({ metrics }) => Object.hasOwn(metrics, metric));
  const ends = [...new Set([measured.at(0), measured.at(-1)])].flatMap((one) =>
    one === undefined
      ? []
      : [`${formatNumber(one.metrics[metric]!)} ${one.step === 0 ? "before training" : `after step ${one.step}`}`],
  );
  return [
    "",
    "## Rewards during training",
    "",
    `Mean reward of the training rollouts at ${formatCount(shown.length)} of ${formatCount(known.length)} steps:`,
    "",
    `| step | ${shown.map(({ step }) => step).join(" | ")} |`,
    `|---|${shown.map(() => "---|").join("")}`,
    `| reward | ${shown.map(({ reward }) => formatNumber(reward)).join(" | ")} |`,
    ...(ends.length === 0 ? [] : ["", `\`${metric}\` on the validation tasks: ${ends.join(", ")}.`]),
  ];
}

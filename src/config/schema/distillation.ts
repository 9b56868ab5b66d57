/** `distillation`: learning from a teacher, under verl's names; and rLLM's older names. */
import { z } from "zod";
import { type DivergenceName, divergences } from "../../algorithms/divergences/divergences.ts";
import { aboveZero, count, notNegative, off, on, optionalText, section, share, text } from "./about.ts";

const optional = text.nullish();

const teacher = z
  .strictObject({
    key: optional,
    model_path: optional,
    base_url: text.refine((url) => /^https?:\/\/[^/]/.test(url), "must begin with http:// or https://").nullish(),
    model: optional,
    api_key_env: optional,
  })
  .refine(({ model_path, base_url }) => (model_path == null) !== (base_url == null), {
    error: "needs, for each teacher, either model_path or base_url",
  });

/** From the sampled token, and over several tokens of each position. */
const lossModes = ["k1", "k2", "k3", "abs", ...(Object.keys(divergences) as DivergenceName[])] as const;

export const distillation = section({
  enabled: off.describe("Learn from a teacher, on the policy's own replies."),
  teacher_models: z
    .record(z.string(), teacher)
    .default({})
    .describe(
      "Teachers by name: {key, model_path} for a model of this backend (a directory, hub id or alias; on Tinker a model of the service), or {key, base_url, model, api_key_env} for a vLLM or SGLang server, or `hone serve`. Without a teacher, an experiment's teacherPrompt makes the policy its own teacher.",
    ),
  teacher_key: text
    .default("data_source")
    .describe("With several teachers: the column of a task's row that has the `key` of its teacher."),
  distillation_loss: section({
    loss_mode: z
      .enum(lossModes)
      .default("k1")
      .describe(
        "Difference between student and teacher. k1, k2, k3 and abs estimate it from the sampled token; the others compare the topk most likely tokens of the teacher.",
      )
      .meta({
        aliases: { kl: "k1", mse: "k2", low_var_kl: "k3" },
        note: "verl's YAML defaults to k3, whose gradient as a loss is that of KL(teacher || student).",
      }),
    use_policy_gradient: z
      .boolean()
      .nullable()
      .default(null)
      .describe(
        "true: minus the difference is added to the advantages; false: the difference is a loss; null: true for k1, else false.",
      )
      .meta({ note: "verl's default is false." }),
    use_task_rewards: off.describe("Also learn from the task's rewards.").meta({ note: "verl's default is true." }),
    distillation_loss_coef: notNegative.default(1).describe("Weight of the difference in the advantages or the loss."),
    kl_discount_factor: share
      .default(0)
      .describe("With policy gradient: how much of the following tokens' difference a token gets; 0: none."),
    loss_max_clamp: aboveZero
      .nullable()
      .default(null)
      .describe("Clamp the difference of each token, summed with that of the following ones, to +/- this."),
    log_prob_min_clamp: z
      .number()
      .max(0)
      .nullable()
      .default(null)
      .describe("Clamp the log-probabilities that a divergence compares from below; null does not."),
    topk: count
      .refine((value) => value >= 1, {
        error:
          "must be at least 1: divergences over the whole vocabulary are not supported; topk=20 has nearly all of it",
      })
      .default(20)
      .describe("Number of the teacher's most likely tokens that a divergence compares."),
    beta: share
      .default(0)
      .describe(
        "jsd: 0 is KL(teacher || student), 1 is KL(student || teacher) of the sampled token, 0.5 is symmetric.",
      ),
    add_tail: on.describe("jsd: count the other tokens as one more; false renormalizes the compared ones instead."),
  }),
});

const sameAs = "rLLM's older name of";

export const distill = section({
  enable: off.describe(`${sameAs} distillation.enabled.`),
  shared_tokenizer: on.describe(
    "Whether teacher and policy have the same tokenizer; teachers with another one are not supported.",
  ),
  teacher_rollout_args: section({
    model: optionalText.describe(`${sameAs} distillation.teacher_models: the name at base_url, or a model_path.`),
    base_url: optionalText.describe(`${sameAs} distillation.teacher_models: the teacher's address.`),
    api_key: optionalText
      .describe("The key of the teacher's server.")
      // biome-ignore lint/suspicious/noTemplateCurlyInString: the configuration's references are spelled like that
      .meta({ secret: true, note: "The key is not saved with a run; set it as ${oc.env:NAME}." }),
  }),
});

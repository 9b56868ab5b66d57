/** The sections outside `rllm`: training, data, teachers, the model, rows and pairs, the local engine, Tinker's service. */
import { z } from "zod";
import { type DivergenceName, divergences } from "../../algorithms/distillation.ts";
import { preferenceLosses, reductions } from "../../algorithms/supervised.ts";
import {
  aboveZero,
  count,
  hosts,
  notNegative,
  off,
  on,
  optionalText,
  positive,
  section,
  share,
  text,
} from "./about.ts";

// `training`, `validation`: optimizer, minibatches, checkpoints, and Tinker's names for group sizes.

export const training = section({
  source: z
    .enum(["rollouts", "rows", "pairs"])
    .default("rollouts")
    .describe(
      "What the run learns from: rollouts (hone train), rows (hone sft) or pairs (hone dpo). The command sets it.",
    ),
  start_from: text
    .nullable()
    .default(null)
    .describe(
      "Checkpoint whose weights the run starts from, with a fresh optimizer. A KL term and pairs compare with these weights. `hone train --from RUN` sets it, and the settings of the run's model.",
    ),
  group_size: positive
    .nullable()
    .default(null)
    .describe(
      "Rollouts per task during training (Tinker's name for rllm.rollout.n); null leaves rllm.rollout.n unchanged.",
    )
    .meta({
      note: "rLLM's documentation marks it as mandatory (???); its code uses 8 if it is missing, the default of rllm.rollout.n.",
    }),
  learning_rate: notNegative
    .default(2e-5)
    .describe("Peak learning rate.")
    .meta({ note: "The verl backend's default is 1e-6." }),
  lr_schedule: z
    .enum(["constant", "linear", "cosine"])
    .default("constant")
    .describe("Learning rate schedule after warm-up."),
  warmup_steps_ratio: share.default(0).describe("Fraction of all training steps used for warm-up."),
  optimizer: z
    .enum(["adamw", "adamw_8bit"])
    .default("adamw")
    .describe("adamw, or adamw_8bit: Adam's moments in 8 bits, by bitsandbytes, which is installed on first use.")
    .meta({ backends: ["local"] }),
  beta1: z.number().min(0).lt(1).default(0.9).describe("Adam's beta1."),
  beta2: z.number().min(0).lt(1).default(0.95).describe("Adam's beta2."),
  eps: aboveZero.default(1e-8).describe("Adam's epsilon."),
  weight_decay: notNegative.default(0).describe("AdamW's decoupled weight decay."),
  max_grad_norm: notNegative.default(1).describe("Clip the global gradient norm to this; 0 is off."),
  max_length: count.min(2).default(32768).describe("Maximum sequence length in tokens, prompt and response together."),
  num_minibatches: positive.default(1).describe("Number of optimizer steps per pass over a batch."),
  ppo_epochs: positive.default(1).describe("Number of passes over each batch."),
  default_local_dir: text
    .default("/tmp/rllm-tinker-checkpoints")
    .describe("Run folder, which stores the names of the checkpoints that the Tinker service holds.")
    .meta({
      instead: "rllm.trainer.run_dir",
      backends: ["tinker"],
      note: "If set, it becomes rllm.trainer.run_dir; otherwise each run gets its own folder under runs/. rLLM's tinker.yaml has checkpoints/{project}/{experiment}.",
    }),
  resume_mode: z
    .enum(["auto", "path", "off"])
    .default("auto")
    .describe(
      "auto resumes from the last checkpoint in the run folder, if any; path resumes from resume_from_path; off starts fresh.",
    )
    .meta({
      aliases: { disable: "off", resume_path: "path" },
      note: "The values disable and resume_path of rLLM and verl are accepted as aliases of off and path.",
    }),
  resume_from_path: z
    .string()
    .nullable()
    .default(null)
    .describe("Checkpoint to resume from with resume_mode=path.")
    .meta({ when: "training.resume_mode=path" }),
  resume_from_tinker_id: z
    .templateLiteral(["tinker://", text])
    .meta({ title: "tinker://RUN/weights/NAME" })
    .nullable()
    .default(null)
    .describe("Checkpoint of a Tinker service to resume from: resume_from_path with resume_mode=path.")
    .meta({ backends: ["tinker"] }),
  max_ckpt_num: positive
    .default(3)
    .describe("Number of checkpoints to keep (the best and the newest are always kept)."),
  max_ckpt_mem: aboveZero.default(1000).describe("Maximum total size of kept checkpoints in GB."),
  best_metric: z
    .string()
    .default("val/reward")
    .describe(
      "Validation metric that selects the best checkpoint (higher is better): val/reward, or val/NAME/reward or val/NAME/pass@N with the name of the validation dataset.",
    ),
  keep_best: off.describe("Also save a checkpoint at every new best value of best_metric, in addition to save_freq."),
});

export const validation = section({
  group_size: positive
    .nullable()
    .default(null)
    .describe(
      "Rollouts per task during validation (Tinker's name for rllm.rollout.n_val); null leaves rllm.rollout.n_val unchanged.",
    )
    .meta({
      note: "rLLM's documentation marks it as mandatory (???); its code uses 1 if it is missing, the default of rllm.rollout.n_val.",
    }),
});

// `data`, and `rllm.data` with the same sizes under the names that scripts for every backend use.

const sizes = {
  max_prompt_length: positive
    .default(2048)
    .describe("Maximum prompt length in tokens; a longer prompt ends the rollout.")
    .meta({ note: "rLLM's tinker.yaml has 30720; Hone follows rLLM's documentation (2048)." }),
  max_response_length: positive
    .default(2048)
    .describe("Maximum reply length in tokens.")
    .meta({ note: "rLLM's base.yaml has 30720; Hone follows rLLM's documentation (2048)." }),
  train_batch_size: positive
    .default(64)
    .describe("Number of tasks per training step.")
    // Asynchronous steps have rllm.async_training.mini_batch_size tasks.
    .meta({
      when: "rllm.async_training.enable=false",
      note: "rLLM's tinker.yaml has 32; Hone follows rLLM's documentation (64).",
    }),
  val_batch_size: count
    .min(-1)
    .refine((size) => size !== 0, "must be -1 or at least 1")
    .default(32)
    .describe("Number of tasks validated at a time; -1 validates all at once."),
};

export const rllmData = section(sizes);

export const data = section({
  ...sizes,
  shuffle: on.describe("Reshuffle the training data every epoch."),
  train_files: z
    .union([text, z.array(text)])
    .nullable()
    .default(null)
    .describe(
      "The rows of hone sft or the pairs of hone dpo: a .jsonl or .parquet file, or hub:organization/name; several are read one after the other.",
    ),
  val_files: z
    .union([text, z.array(text)])
    .nullable()
    .default(null)
    .describe("Rows or pairs to measure the loss on every rllm.trainer.test_freq steps, as in train_files."),
  max_length: positive
    .nullable()
    .default(null)
    .describe("Maximum length of a row in tokens; null is training.max_length."),
  truncation: z
    .enum(["error", "right", "left", "drop"])
    .default("error")
    .describe(
      "Rows that are longer: error stops before training, right cuts off their end, left their beginning, drop leaves them out. Cut and dropped rows are counted.",
    ),
  image_hosts: hosts.describe(
    "Networks from which images of the data are fetched although they are not public, such as 127.0.0.1 or 10.1.0.0/16. Images at public addresses are always fetched.",
  ),
  mixed_mm_data: off.describe(
    "The data contains rows with images and rows without. A model that reads only text is then refused at the start.",
  ),
});

// `distillation`: learning from a teacher, under verl's names; and rLLM's older names.

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

// `model`: which one, and which of its weights are trained.

const ofLora = { when: "model.lora_rank above 0" } as const;

export const model = section({
  name: text
    .default("Qwen/Qwen3-8B")
    .describe("Model: an alias, a Hugging Face directory, a .gguf file or a hub id.")
    .meta({
      note: "The local backend's default is smollm2-135m-instruct, which needs no model hub and trains on two CPU cores.",
    }),
  lora_rank: count.min(0).max(16_384).default(32).describe("LoRA rank; 0 trains all weights."),
  lora_alpha: aboveZero.default(32).describe("LoRA alpha; the LoRA scale is lora_alpha / lora_rank.").meta(ofLora),
  train_unembed: on.describe("Apply LoRA to the output embedding.").meta({
    ...ofLora,
    note: "The local backend's default is false, because small models share the output embedding with the input embedding.",
  }),
  train_attn: on.describe("Apply LoRA to the attention layers.").meta(ofLora),
  train_mlp: on.describe("Apply LoRA to the MLP layers.").meta(ofLora),
  train_experts: off
    .describe("Also apply LoRA to the experts of a mixture of experts; false leaves them as they are.")
    .meta(ofLora),
  train_vision: off.describe(
    "Also train the vision part of a model that accepts images: LoRA on its layers, or all of its weights.",
  ),
  processor: optionalText.describe(
    "Folder or hub id with the image processor of a model that accepts images; null is the model's own.",
  ),
});

// `sft` and `dpo`: learning from rows and from pairs.

export const trainedParts = [
  "all_assistant_messages",
  "last_assistant_message",
  "last_assistant_turn",
  "all_messages",
  "all_tokens",
  "customized",
] as const;

const namesOf = <Name extends string>(table: Readonly<Record<Name, unknown>>) =>
  Object.keys(table) as [Name, ...Name[]];

export const sft = section({
  train_on: z
    .enum(trainedParts)
    .default("all_assistant_messages")
    .describe(
      'Which parts of a conversation are learned. last_assistant_turn: the assistant\'s messages after the last user message. all_messages: every message without its header. customized: the messages with "trainable": true.',
    )
    .meta({ note: "TRL learns all tokens by default, and the assistant's messages with assistant_only_loss=true." }),
  reduction: z
    .enum(namesOf(reductions))
    .default("token-mean")
    .describe(
      "How the tokens' losses become one number: token-mean over the batch (TRL, verl); token-sum (rLLM on Tinker); example-mean, the mean over examples of each one's mean; example-mean-sum, their sum (Tinker cookbook). Learning rates do not carry over.",
    ),
  loss_type: z
    .enum(["nll", "dft"])
    .default("nll")
    .describe("nll: negative log-likelihood. dft: each token's loss times its own probability (arXiv 2508.05629)."),
}).meta({ when: "training.source=rows" });

export const dpo = section({
  loss_type: z
    .enum(namesOf(preferenceLosses))
    .default("sigmoid")
    .describe("The loss of a pair, under TRL's names; ipo and sigmoid_norm compare means over tokens."),
  beta: aboveZero.default(0.1).describe("How strongly the policy is held to the reference, the model before training."),
  label_smoothing: z
    .number()
    .min(0)
    .lt(0.5)
    .default(0)
    .describe("The probability that a pair's label is wrong.")
    .meta({ when: "dpo.loss_type=robust" }),
}).meta({ when: "training.source=pairs" });

// `local`: settings of the local engine.

const isAddress = (url: string) => /^https?:\/\/[^/]/.test(url);

export const local = section({
  device: z.string().default("auto").describe("Device to train and sample on: auto, cpu, cuda, cuda:N or mps."),
  dtype: z
    .enum(["auto", "float32", "bfloat16"])
    .default("auto")
    .describe("Data type of the model; auto is bfloat16 if the machine computes it faster, else float32."),
  micro_batch_tokens: count
    .min(0)
    .default(0)
    .describe(
      "Tokens per forward-backward pass of a process; 0 chooses by available memory. A single process halves it after an out-of-memory error.",
    ),
  transformers: text
    .regex(/^\d+\.\d+\.\d+$/, "must be a version such as 5.24.0")
    .nullable()
    .default(null)
    .describe(
      "Version of transformers for models that are newer than the locked version, installed on first use without hashes; null uses the locked one.",
    ),
  router_aux_loss: z
    .number()
    .min(0)
    .default(0)
    .describe(
      "Weight of transformers' auxiliary loss that balances the experts of a mixture, averaged over the tokens of a batch.",
    ),
  gradient_checkpointing: z
    .union([z.enum(["auto"]), z.boolean()])
    .default("auto")
    .describe(
      "Recompute activations in the backward pass to save memory; auto does if training would not fit otherwise.",
    ),
  chunk_size: positive
    .default(256)
    .describe("Number of trained positions whose logits are in memory at the same time."),
  max_sample_rows: positive.default(256).describe("Number of sequences sampled concurrently."),
  threads: count.min(0).default(0).describe("Number of tensor library threads; 0 is one per core."),
  processes: z
    .union([z.enum(["auto"]), positive])
    .default(1)
    .describe(
      "Number of processes (one per GPU) that train the model together; a separate process samples. auto is the number of visible NVIDIA GPUs before the first of sampler.devices, or 1 without such GPUs.",
    ),
  sharding: z
    .enum(["zero1", "zero2", "zero3", "fsdp"])
    .default("fsdp")
    .describe(
      "How several processes share a model's memory: FSDP2 of torch, or a ZeRO stage of DeepSpeed, which is installed on first use. zero1 shards the optimizer's state; zero2 also the gradients; zero3 and fsdp also the weights.",
    ),
  offload_parameters: off.describe("Keep the weights that a process trains in CPU memory between uses."),
  offload_optimizer: off.describe("Keep Adam's moments in CPU memory, and run optimizer steps on the CPU."),
  mixed_precision_optimizer: off
    .describe(
      "Keep float32 master weights in the optimizer next to the model's bfloat16 weights. The local engine always does this.",
    )
    .meta({ neutral: [true] }),
  sequence_parallel: positive
    .default(1)
    .describe("Number of processes that share each sequence; must divide processes."),
  sampler: section({
    type: z
      .enum(["auto", "own", "vllm", "sglang"])
      .default("auto")
      .describe(
        "Sampler: the local engine itself (own), or an inference server (vllm, sglang). auto is vllm if url is set or the run uses an NVIDIA GPU, else own.",
      )
      .meta({ backends: ["local"], instead: "local.sampler.type=own" }),
    url: z
      .union([text, z.array(text).min(1)])
      .refine((urls) => [urls].flat().every(isAddress), "must begin with http:// or https://")
      .nullable()
      .default(null)
      .describe(
        "URL of a running vLLM or SGLang server that serves the same model, or a list of such URLs; null starts one. The servers sample; the local engine trains and sends them each new version of the LoRA adapter, or of all weights.",
      )
      .meta({ backends: ["local"] }),
    api_key: optionalText
      .describe("API key of the inference servers; null uses the environment variable VLLM_API_KEY, if it is set.")
      // biome-ignore lint/suspicious/noTemplateCurlyInString: the configuration's references are spelled like that
      .meta({ backends: ["local"], secret: true, note: "The key is not saved with a run; set it as ${oc.env:NAME}." }),
    timeout: z
      .number()
      .gt(0)
      .default(1800)
      .describe(
        "Time limit in seconds for a request to an inference server without progress: no answer, or no next token of a stream. The server then counts as failed. A server that does not answer /health is detected earlier, after about a minute. It is also the limit for one step of the model in a vLLM server that Hone starts.",
      )
      .meta({ backends: ["local"] }),
    tensor_parallel: positive
      .default(1)
      .describe("Number of GPUs, or of processes on a CPU, that share the inference server's model.")
      .meta({ backends: ["local"] }),
    memory_share: z
      .number()
      .gt(0)
      .max(1)
      .default(0.5)
      .describe("Fraction of GPU memory for the inference server.")
      .meta({ backends: ["local"] }),
    devices: z
      .array(count.min(0))
      .min(1)
      .nullable()
      .default(null)
      .describe("GPUs of the inference server, such as [1, 2]; null is the trainer's.")
      .meta({ backends: ["local"] }),
    sleep: on
      .describe("Free the inference server's memory during training, if Hone starts it on the trainer's GPU.")
      .meta({ backends: ["local"] }),
  }),
});

// Root keys of the Tinker service, and `rollout_engine`.

export const tinkerKeys = {
  tinker_base_url: optionalText
    .describe(
      "URL of the Tinker service; null uses TINKER_BASE_URL, else the hosted service if TINKER_API_KEY is set, else Hone's own service in this process.",
    )
    .meta({ backends: ["tinker"] }),
  fuse_forward_backward_and_optim_step: off
    .describe("Send the optimizer step without waiting for the response to the forward-backward pass.")
    .meta({ backends: ["tinker"], instead: "the default: other engines have no network round trip to save" }),
};

/** The renderers of `src/chat/renderers.ts`, in its order. */
export const rendererNames = [
  ...[
    "plain",
    "hermes",
    "qwen",
    "deepseek_r1",
    "gemma",
    "gpt_oss",
    "gemma4",
    "minimax_m2",
    "deepseek_v32",
    "deepseek_v3",
  ],
  ...[
    "kimi_k2",
    "seed_oss",
    "glm",
    "qwen3_coder",
    "nemotron",
    "lfm2",
    "olmo3",
    "minimax_m1",
    "phi4",
    "granite",
    "mistral",
  ],
  ...["llama4", "qwen3", "llama3"],
];

export const rolloutEngine = section({
  reasoning_effort: z
    .enum(["low", "medium", "high"])
    .default("medium")
    .describe("How much the model should think, for chat templates that read it."),
  accumulate_reasoning: off.describe(
    "Keep the thinking of earlier replies in the prompt; same as rllm.accumulate_reasoning.",
  ),
  disable_thinking: off.describe("Request replies without thinking; same as rllm.disable_thinking."),
  renderer_name: optionalText
    .describe(
      "How replies are parsed, for plain and hermes also how messages are written: a name, or a file that exports defineRenderer. null detects it from the model's own chat template.",
    )
    .meta({ options: rendererNames, orModule: true }),
  bypass_render_with_parser: off
    .describe("Has no effect: Hone has only one way to convert messages to tokens.")
    .meta({ neutral: [true], note: "It selects one of two renderers in rLLM." }),
});

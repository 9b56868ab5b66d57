/** `local`: settings of the local engine. */
import { z } from "zod";
import { count, off, on, optionalText, positive, section, text } from "./about.ts";

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

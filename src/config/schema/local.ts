/** `local`: how the local engine computes. */
import { z } from "zod";
import { count, text } from "./about.ts";

const processesLater = "the local engine is one process yet";
const serverLater = "the local engine samples by itself yet";

export const local = z
  .strictObject({
    device: z.string().default("auto").describe("auto, cpu, cuda, cuda:N or mps."),
    dtype: z
      .enum(["auto", "float32", "bfloat16"])
      .default("auto")
      .describe("auto is bfloat16 where the machine computes it faster."),
    micro_batch_tokens: count
      .min(0)
      .default(0)
      .describe("Packed tokens per forward-backward; 0 picks by memory. Halved on out-of-memory."),
    gradient_checkpointing: z
      .boolean()
      .default(false)
      .describe("Recompute activations in the backward pass to save memory."),
    chunk_size: count.min(1).default(256).describe("Trained positions whose logits exist at the same time."),
    max_sample_rows: count.min(1).default(256).describe("Sequences sampled at the same time."),
    threads: count.min(0).default(0).describe("Threads of the tensor library; 0 is one per core."),
    processes: count
      .min(1)
      .default(1)
      .describe("Processes (one a GPU) that share the model.")
      .meta({ later: processesLater }),
    sharding: z
      .enum(["zero1", "zero2", "zero3", "fsdp"])
      .default("zero2")
      .describe("How several processes share optimizer, gradients and weights. At one process it changes nothing.")
      .meta({ neutral: ["zero1", "zero2", "zero3", "fsdp"] }),
    offload_parameters: z
      .boolean()
      .default(false)
      .describe("Keep the weights in main memory between uses.")
      .meta({ later: processesLater }),
    offload_optimizer: z
      .boolean()
      .default(false)
      .describe("Keep Adam's moments in main memory.")
      .meta({ later: processesLater }),
    mixed_precision_optimizer: z
      .boolean()
      .default(false)
      .describe("Keep float32 weights in the optimizer beside bfloat16 ones in the model.")
      .meta({ later: "the optimizer has one precision yet" }),
    sequence_parallel: count
      .min(1)
      .default(1)
      .describe("Processes that share one sequence.")
      .meta({ later: processesLater }),
    sampler: z
      .strictObject({
        type: z
          .enum(["own", "vllm", "sglang"])
          .default("own")
          .describe("What samples: the local engine itself, or an inference server.")
          .meta({ later: { vllm: serverLater, sglang: serverLater }, instead: "local.sampler.type=own" }),
        url: text
          .nullable()
          .default(null)
          .describe("The address of a server that runs already; null starts one.")
          .meta({ later: serverLater }),
        tensor_parallel: count
          .min(1)
          .default(1)
          .describe("GPUs that share the server's model; divides processes.")
          .meta({ later: serverLater }),
        memory_share: z
          .number()
          .gt(0)
          .max(1)
          .default(0.5)
          .describe("Share of GPU memory for the server.")
          .meta({ later: serverLater }),
        sleep: z
          .boolean()
          .default(true)
          .describe("Free the server's memory while the trainer trains. Without a server it changes nothing.")
          .meta({ neutral: [true, false] }),
      })
      .prefault({}),
  })
  .prefault({});

/** SGLang's control routes. */
import { z } from "zod";
import { RunError } from "../../../errors.ts";
import { type AskedServer, openAsk } from "./ask.ts";
import { type Control, commonControl } from "./control.ts";

const outcome = z.object({ success: z.boolean(), message: z.string().nullish(), error_message: z.string().nullish() });
const modelInfo = z.object({ weight_version: z.string() });

export function sglangControl(server: AskedServer): Control {
  const asking = openAsk(server, "SGLang");
  const { url, ask, read } = asking;

  async function succeed(path: string, body: object): Promise<void> {
    const { success, message, error_message: reason } = await read(outcome, path, body);
    if (!success) throw new RunError(`the inference server at ${url} refused ${path}: ${reason ?? message}`);
  }

  return {
    ...commonControl(asking, "/unload_lora_adapter"),
    loadAdapter: (name, path) => succeed("/load_lora_adapter", { lora_name: name, lora_path: path }),
    async loadWeights(path, version) {
      // The other modes abort running requests, or keep their cache.
      await ask("/pause_generation", { mode: "retract" });
      try {
        await succeed("/update_weights_from_disk", { model_path: path, weight_version: version, flush_cache: true });
      } finally {
        await ask("/continue_generation", {});
      }
    },
    weightVersion: async () => (await read(modelInfo, "/model_info")).weight_version,
    async sleep() {
      await ask("/release_memory_occupation", {});
    },
    async wake() {
      await ask("/resume_memory_occupation", {});
    },
  };
}

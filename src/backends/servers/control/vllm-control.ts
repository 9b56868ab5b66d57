/** vLLM's control routes. The routes for weights need VLLM_SERVER_DEV_MODE=1. */
import { z } from "zod";
import { RunError } from "../../../errors.ts";
import { type AskedServer, openAsk } from "./ask.ts";
import { type Control, commonControl } from "./control.ts";

const reset = z.object({ success: z.boolean() });
const weightInfo = z.object({ weight_version: z.string() });

export function vllmControl(server: AskedServer): Control {
  const asking = openAsk(server, "vLLM");
  const { url, ask, read } = asking;

  async function resetCache(): Promise<void> {
    // Without the parameter, the reset fails while a running request has cache entries.
    const { success } = await read(reset, "/reset_prefix_cache?reset_running_requests=true", {});
    if (!success) throw new RunError(`the inference server at ${url} could not reset its prefix cache`);
  }

  return {
    ...commonControl(asking, "/v1/unload_lora_adapter"),
    async loadAdapter(name, path) {
      await ask("/v1/load_lora_adapter", { lora_name: name, lora_path: path });
    },
    async loadWeights(path, version) {
      await ask("/pause?mode=keep", {});
      try {
        await ask("/collective_rpc", { method: "reload_weights", kwargs: { weights_path: path } });
        await resetCache();
        await ask("/update_weight_version", { new_version: version });
      } finally {
        await ask("/resume", {});
      }
    },
    async joinGroup({ id, size }) {
      const init = { nccl_unique_id_b64: id, rank_offset: 1, world_size: size, packed: false };
      await ask("/init_weight_transfer_engine", { init_info: init });
    },
    async receiveWeights({ weights: { names, dtypes, shapes }, send }, version) {
      await ask("/pause?mode=keep", {});
      await ask("/start_weight_update", {});
      await Promise.all([ask("/update_weights", { update_info: { names, dtype_names: dtypes, shapes } }), send()]);
      await ask("/finish_weight_update", { weight_version: version });
      await resetCache();
      await ask("/resume", {});
    },
    weightVersion: async () => (await read(weightInfo, "/weight_info")).weight_version,
    async sleep() {
      await ask("/sleep?level=1", {});
    },
    async wake() {
      await ask("/wake_up", {});
    },
  };
}

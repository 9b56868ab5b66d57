/** verl on Ray: its workers train; verl's rollout servers or a vLLM server sample. */
import { join } from "node:path";
import { temporaryFolder } from "../../base/files.ts";
import type { BackendDescriptor } from "../backend.ts";
import { composeEngine } from "../engine-parts.ts";
import { modelSource } from "../local/models.ts";
import { usableCores } from "../local/options.ts";
import { launchOptions } from "../servers/started-server.ts";
import { capabilities, reasonUnused, verlEngineOptions } from "./options.ts";

export const verl: BackendDescriptor = {
  capabilities: () => capabilities,
  rules: [
    {
      outcome: "unsupported",
      keys: ["model.train_attn", "model.train_mlp"],
      requires:
        "all weights (model.lora_rank=0), because verl trains LoRA adapters on attention and MLP layers together",
      isMet: ({ config: { model } }, value) => model.lora_rank === 0 || value !== false,
      hint: "actor_rollout_ref.model.target_modules selects layers by name",
    },
  ],
  check(composed) {
    modelSource(composed.config.model.name);
    verlEngineOptions(composed, usableCores());
  },
  // The settings of the local engine have no effect.
  isRemote: () => true,
  reasonUnused,
  async examine(composed) {
    return (await import("./examine.ts")).examine(composed, usableCores());
  },
  async open(composed, { folder, warn, ...hooks }) {
    const [{ openVerlEngine }, { servedPolicies }, { openTokenizer }] = await Promise.all([
      import("./engine.ts"),
      import("../servers/policies.ts"),
      import("../../chat/tokenizer.ts"),
    ]);
    const options = verlEngineOptions(composed, usableCores(), { ...hooks, ...(warn ? { warn } : {}) });
    const trainer = await openVerlEngine(options);
    const serving = {
      onNote: warn,
      folder: folder === undefined ? temporaryFolder("hone-published-") : join(folder, "published"),
      encode: (text: string) => openTokenizer(trainer.model.directory).encode(text),
    };
    if (trainer.rollouts) {
      const hint = "see worker.log in the run folder";
      const serverOptions = { ...serving, ...trainer.rollouts, kind: options.rollouts!, hint };
      return composeEngine({ trainer, samplers: servedPolicies(trainer, serverOptions) });
    }
    try {
      const { startVllmSampler } = await import("../servers/start-servers.ts");
      const own = await startVllmSampler(composed.config, launchOptions(composed.config, trainer, false), hooks);
      const { url, apiKey, died, stop } = own;
      const samplers = servedPolicies(trainer, { ...serving, urls: [url], apiKey, own });
      return composeEngine({ trainer, samplers, programs: [{ died, close: stop }] });
    } catch (error) {
      await trainer.close();
      throw error;
    }
  },
};

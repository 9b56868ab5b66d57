/** A thread of the Codex SDK, which starts Codex for each rollout. It reads the prices with a command. */
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Codex } from "@openai/codex-sdk";
import { prices, shop } from "./shop.ts";

export default shop("codex", async (question, { gateway, signal, tearDown }) => {
  const folder = await mkdtemp(join(tmpdir(), "shop-"));
  tearDown(() => rm(folder, { recursive: true, force: true }));
  await writeFile(join(folder, "prices.json"), JSON.stringify(prices));
  const hone = { name: "hone", base_url: gateway.baseURL, env_key: "MODEL_KEY", wire_api: "responses" };
  const codex = new Codex({
    config: {
      model_provider: "hone",
      model_providers: { hone },
      web_search: "disabled", // a tool that only OpenAI's servers have
      features: { multi_agent: false, plugins: false, apps: false },
      analytics: { enabled: false },
      check_for_update_on_startup: false,
    },
    env: { PATH: process.env.PATH ?? "", HOME: folder, MODEL_KEY: gateway.apiKey },
  });
  const thread = codex.startThread({
    model: "policy",
    workingDirectory: folder,
    skipGitRepoCheck: true,
    sandboxMode: "read-only",
    approvalPolicy: "never",
  });
  const { items, finalResponse } = await thread.run(
    `${question} Prices are in prices.json. Answer with the total alone.`,
    { signal },
  );
  const commands = items.filter((item) => item.type === "command_execution" && item.exit_code === 0);
  return { text: finalResponse, lookups: commands.length };
});

/** Hone's gateway alone, for the benchmark, as it is built: what `hone` runs. `node ... PORT engine|upstream UPSTREAM_URL memory|sqlite FOLDER` */
import { join } from "node:path";
import type { Sampler } from "../../src/backends/engine.ts";

const built = (path: string) => import(new URL(`../../dist/${path}`, import.meta.url).href);
const { loadChat }: typeof import("../../src/chat/chat.ts") = await built("chat/chat.js");
const { openGateway, openTraceStore, policySessions }: typeof import("../../src/index.ts") = await built("index.js");
const { serverSampler }: typeof import("../../src/backends/servers/sampler.ts") =
  await built("backends/servers/sampler.js");

const [port, kind, url = "", traces, folder = ""] = process.argv.slice(2);
const chat = loadChat(new URL("../../src/chat/fixtures/qwen", import.meta.url).pathname);
const tokens = chat.encode("Hello world<|im_end|>");

/** Answers at once. */
const instant: Pick<Sampler, "sample"> = {
  async *sample(requests) {
    for (const request of requests.keys()) {
      const logprobs = new Float32Array(tokens.length).fill(-0.5);
      yield { request, tokens, logprobs, stopReason: "stop", policyVersion: 0 };
    }
  },
};
const sampler = kind === "engine" ? instant : serverSampler({ url, model: "policy" });
const store = traces === "sqlite" ? openTraceStore({ path: join(folder, "traces.db") }) : undefined;
await openGateway({
  ...{ chat, model: "policy", port: Number(port) },
  openUnknown: policySessions({ sampler, chat, limits: { maxPromptLength: 32_768, maxResponseLength: 1024 } }),
  ...(store === undefined ? {} : { store }),
  log: console.error,
});
console.log("ready");
process.once("SIGINT", () => process.exit(0));

/** Hone's gateway alone, for the benchmark. `node ... PORT engine|upstream UPSTREAM_URL memory|sqlite FOLDER` */
import { join } from "node:path";
import type { Policy } from "../../src/backends/engine.ts";
import { loadChat } from "../../src/chat/chat.ts";
import { openGateway } from "../../src/gateway/gateway.ts";
import { policySessions } from "../../src/gateway/policy-sessions.ts";
import { openTraceStore } from "../../src/gateway/traces/open-trace-store.ts";
import { upstreamPolicy } from "../../src/gateway/upstream/upstream-policy.ts";

const [port, kind, url = "", traces, folder = ""] = process.argv.slice(2);
const chat = loadChat(new URL("../../src/chat/fixtures/qwen", import.meta.url).pathname);
const tokens = chat.encode("Hello world<|im_end|>");

/** Answers at once. */
const instant: Pick<Policy, "sample"> = {
  async *sample(requests) {
    for (const request of requests.keys()) {
      const logprobs = new Float32Array(tokens.length).fill(-0.5);
      yield { request, tokens, logprobs, stopReason: "stop", policyVersion: 0 };
    }
  },
};
const policy = kind === "engine" ? instant : upstreamPolicy({ url, model: "policy" });
const store = traces === "sqlite" ? openTraceStore({ path: join(folder, "traces.db") }) : undefined;
await openGateway({
  ...{ chat, model: "policy", port: Number(port) },
  openUnknown: policySessions({ policy, chat, limits: { maxPromptLength: 32_768, maxResponseLength: 1024 } }),
  ...(store === undefined ? {} : { store }),
  log: console.error,
});
console.log("ready");
process.once("SIGINT", () => process.exit(0));

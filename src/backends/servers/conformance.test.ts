/** The conformance checks of samplers, over inference servers' HTTP in front of the tabular engine. */
import { afterAll, beforeAll, describe, test } from "vitest";
import { samplerChecks } from "../../../conformance/conformance.ts";
import { withTrainedPolicy } from "../../../conformance/tools.ts";
import { deriveSeed, uniforms } from "../../base/values.ts";
import { tabularEngine } from "../../testing/tabular-engine.ts";
import type { Capabilities, Sampler } from "../engine.ts";
import { fakeServer } from "./fake-server.fixture.ts";
import { serverSampler } from "./sampler.ts";

const engine = tabularEngine({
  alphabet: "abcdefghijklmnopqrstuvwxyz",
  logit: (next, previous) => uniforms(deriveSeed(next, previous))() * 4 - 2,
});
/** What the dialects can express. */
const sampling: Capabilities["sampling"] = [
  "top_p",
  "top_k",
  "min_p",
  "stop_ids",
  "stop_strings",
  "seed",
  "top_logprobs",
  "abort",
  "tokens_streamed",
];

describe.each(["vllm", "sglang"] as const)("a sampler of %s", (kind) => {
  let behind: Sampler;
  let server: Awaited<ReturnType<typeof fakeServer>>;
  let sampler: Sampler;
  beforeAll(async () => {
    server = await fakeServer(kind, () => behind);
    sampler = serverSampler({ url: server.url, kind });
  });
  afterAll(async () => {
    await sampler.close();
    server.close();
  });

  for (const { name, needs, check } of samplerChecks) {
    test.skipIf(needs && !needs({ sampling }))(name, () =>
      withTrainedPolicy(engine, async (policy) => {
        behind = policy.sampler;
        await check({ sampler, model: engine.model }, { tolerance: 1e-5 });
      }),
    );
  }
});

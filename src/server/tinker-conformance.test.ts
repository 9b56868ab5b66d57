import { join } from "node:path";
import { afterAll, beforeAll, describe, test } from "vitest";
import { conformance } from "../backends/conformance.ts";
import type { Engine } from "../backends/engine.ts";
import { capabilities } from "../backends/tinker/capabilities.ts";
import { openTinkerEngine } from "../backends/tinker/engine.ts";
import { deriveSeed, uniforms } from "../random.ts";
import { temporaryFolder } from "../temporary-folder.fixture.ts";
import { tabularEngine } from "../testing/tabular-engine.ts";
import { openService, type RunningService } from "./start-server.ts";

const root = temporaryFolder("tinker");

/** The promises of every engine, asked of the Tinker client in front of Hone's own server. */
describe.each([
  ["one after another", false],
  ["with steps that do not wait", true],
])("the Tinker engine, %s", (name, overlap) => {
  let running: RunningService;
  let engine: Engine;
  beforeAll(async () => {
    const inner = tabularEngine({
      alphabet: "abcdefghijklmnopqrstuvwxyz",
      logit: (next, previous) => uniforms(deriveSeed(next, previous))() * 4 - 2,
    });
    running = await openService({ engines: [{ names: ["tiny"], engine: inner }], stateFolder: join(root, name) });
    engine = await openTinkerEngine({
      model: "tiny",
      baseUrl: "http://in-process",
      apiKey: "tml-local",
      overlap,
      fetch: async (url, init) => running.app.request(url, init),
      tokenizerFolder: async () => "",
    });
  });
  afterAll(async () => {
    await engine?.close();
    await running?.close();
  });

  for (const [index, { name: check, needs, check: run }] of conformance.entries()) {
    // The engine behind this server exports nothing.
    test.skipIf(needs && !needs({ ...capabilities, exports: [] }))(check, () =>
      run(engine, { path: (file) => join(root, `${name}-${index}-${file}`), tolerance: 1e-5 }),
    );
  }
});

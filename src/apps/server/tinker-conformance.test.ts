import { join } from "node:path";
import { afterAll, beforeAll, describe, test } from "vitest";
import { conformance } from "../../../conformance/conformance.ts";
import { engineCapabilities, honeCapabilities } from "../../backends/tinker/handshake.ts";
import { memory, temporaryFolder } from "../../temporary-folder.fixture.ts";
import { type OpenedTinker, openTinker } from "./tinker-engine.fixture.ts";

const root = temporaryFolder("tinker", memory);

/** The conformance tests of every engine, for the Tinker client in front of Hone's own server. */
describe.each([
  ["one after another", false],
  ["with steps that do not wait", true],
])("the Tinker engine, %s", (name, overlap) => {
  let opened: OpenedTinker;
  beforeAll(async () => {
    opened = await openTinker({ stateFolder: join(root, name), client: { overlap } });
  });
  afterAll(() => opened?.close());

  for (const [index, { name: check, needs, check: run }] of conformance.entries()) {
    // The engine behind this server exports nothing.
    test.skipIf(needs && !needs({ ...engineCapabilities(honeCapabilities, { otherModels: false }), exports: [] }))(
      check,
      () => run(opened.engine, { path: (file) => join(root, `${name}-${index}-${file}`), tolerance: 1e-5 }),
    );
  }
});

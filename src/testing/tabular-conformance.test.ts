import { join } from "node:path";
import { test } from "vitest";
import { conformance } from "../../conformance/conformance.ts";
import { deriveSeed, uniforms } from "../random.ts";
import { temporaryFolder } from "../temporary-folder.fixture.ts";
import { tabularEngine } from "./tabular-engine.ts";

const engine = tabularEngine({
  alphabet: "abcdefghijklmnopqrstuvwxyz",
  logit: (next, previous) => uniforms(deriveSeed(next, previous))() * 4 - 2,
});
const folder = temporaryFolder("conformance");

for (const [index, { name, needs, check }] of conformance.entries()) {
  test.skipIf(needs && !needs(engine.capabilities))(name, () =>
    check(engine, { path: (part) => join(folder, `${index}-${part}`), tolerance: 1e-5 }),
  );
}

import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, test } from "vitest";
import { conformance } from "../../conformance/conformance.ts";
import { deriveSeed, uniforms } from "../random.ts";
import { tabularEngine } from "./tabular-engine.ts";

const engine = tabularEngine({
  alphabet: "abcdefghijklmnopqrstuvwxyz",
  logit: (next, previous) => uniforms(deriveSeed(next, previous))() * 4 - 2,
});
let folder: string;
beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), "hone-conformance-"));
});
afterAll(() => rm(folder, { recursive: true }));

for (const [index, { name, needs, check }] of conformance.entries()) {
  test.skipIf(needs && !needs(engine.capabilities))(name, () =>
    check(engine, { path: (part) => join(folder, `${index}-${part}`), tolerance: 1e-5 }),
  );
}

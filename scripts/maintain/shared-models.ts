/** The folder of the models that end-to-end tests share (src/base/python.fixture.ts), removed after the last test. */
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

export default function setUp() {
  const folder = mkdtempSync(join(tmpdir(), "hone-models-"));
  process.env.HONE_SHARED_MODELS = folder;
  return () => rmSync(folder, { recursive: true, force: true });
}

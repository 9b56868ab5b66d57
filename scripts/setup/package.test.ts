import { join } from "node:path";
import { afterEach, expect, test, vi } from "vitest";
import { temporaryFolder } from "../../src/temporary-folder.fixture.ts";
import { preparePackage } from "./package.mjs";

const folder = temporaryFolder("package-setup");

afterEach(() => void vi.unstubAllEnvs());

test("a package that is compiled needs a compiler, before anything is downloaded", async () => {
  vi.stubEnv("CXX", join(folder, "no-compiler"));
  await expect(preparePackage("deepspeed", folder)).rejects.toMatchObject({
    message: expect.stringMatching(/^deepspeed needs a C\+\+ compiler, and .*no-compiler does not run$/),
    hint: expect.stringContaining("apt install g++"),
    exitCode: 2,
  });
});

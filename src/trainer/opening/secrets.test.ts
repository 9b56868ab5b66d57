// biome-ignore-all lint/suspicious/noTemplateCurlyInString: the configuration's references are spelled like that
import { readdirSync, readFileSync, statSync } from "node:fs";
import { join } from "node:path";
import { afterEach, expect, test, vi } from "vitest";
import { openToy, temporaryFolders, toy } from "../toy-experiment.fixture.ts";
import { train } from "../train.ts";

const { newFolder } = temporaryFolders("secrets");
afterEach(() => vi.unstubAllEnvs());

const secret = "a-secret-4711";
const key = "rllm.sdk.proxy.admin_token";

/** Every file of a folder that holds the text. */
function filesWith(folder: string, text: string): string[] {
  const files = readdirSync(folder, { recursive: true, encoding: "utf8" });
  return files.filter((file) => {
    const path = join(folder, file);
    return statSync(path).isFile() && readFileSync(path).includes(text);
  });
}

test("no file of a run holds a secret, and a resumed run fetches it again", async () => {
  const folder = newFolder();
  vi.stubEnv("HONE_TEST_TOKEN", secret);
  const references = [`${key}=\${oc.env:HONE_TEST_TOKEN}`, "rllm.trainer.experiment_name=x-${oc.env:HONE_TEST_TOKEN}"];
  const steps = (count: number) => `rllm.trainer.total_batches=${count}`;
  await train(toy(), { engine: openToy(), overrides: [...references, steps(2), `rllm.trainer.run_dir=${folder}`] });
  expect(filesWith(folder, "oc.env:HONE_TEST_TOKEN")).toContain("config.yaml");
  expect(filesWith(folder, "oc.env:HONE_TEST_TOKEN").some((file) => file.endsWith("checkpoint.json"))).toBe(true);
  expect(filesWith(folder, secret)).toEqual([]);

  vi.stubEnv("HONE_TEST_TOKEN", "another-one");
  const resumed = await train(toy(), { engine: openToy(), resume: folder, overrides: [steps(4)] });
  expect(resumed).toMatchObject({ exitCode: 0, step: 4 });
  expect(filesWith(folder, "another-one")).toEqual([]);
});

test("an admin token that was given literally must be given again", async () => {
  const folder = newFolder();
  const overrides = [`${key}=${secret}`, "rllm.trainer.total_batches=1", `rllm.trainer.run_dir=${folder}`];
  await train(toy(), { engine: openToy(), overrides });
  expect(filesWith(folder, secret)).toEqual([]);
  const again = (more: string[]) =>
    train(toy(), { engine: openToy(), resume: folder, overrides: ["rllm.trainer.total_batches=2", ...more] });
  await expect(again([])).rejects.toThrow(/admin_token was not saved with the run/);
  expect(await again([`${key}=${secret}`])).toMatchObject({ step: 2 });
});

test("the login of a URL is not saved, and must be given again", async () => {
  const folder = newFolder();
  const tunnel = `rllm.gateway.tunnel=http://me:${secret}@localhost:1`;
  const overrides = [tunnel, "rllm.trainer.total_batches=1", `rllm.trainer.run_dir=${folder}`];
  await train(toy(), { engine: openToy(), overrides });
  expect(filesWith(folder, "http://***@localhost:1")).not.toEqual([]);
  expect(filesWith(folder, secret)).toEqual([]);
  const again = (more: string[]) =>
    train(toy(), { engine: openToy(), resume: folder, overrides: ["rllm.trainer.total_batches=2", ...more] });
  await expect(again([])).rejects.toThrow(/password in rllm.gateway.tunnel were not saved/);
  expect(await again([tunnel])).toMatchObject({ step: 2 });
});

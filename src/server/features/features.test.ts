import { readdirSync, readFileSync } from "node:fs";
import { join, relative, sep } from "node:path";
import { fileURLToPath } from "node:url";
import { expect, test } from "vitest";
import { adam, testClient } from "../client.fixture.ts";
import { features } from "./index.ts";

const here = fileURLToPath(new URL(".", import.meta.url));
const source = join(here, "../..");

const isProduct = (file: string) => file.endsWith(".ts") && !/\.(test|e2e|fixture)\.ts$/.test(file);

/** The file or folder of features that a path is in: "usage.ts", "vllm"; undefined outside. */
function featureOf(path: string): string | undefined {
  const [first = ".."] = relative(here, path).split(sep);
  return first === ".." ? undefined : first;
}

test("a feature is a leaf: only the list of features imports it, in one line", () => {
  const imports: string[] = [];
  for (const file of readdirSync(source, { recursive: true, encoding: "utf8" }).filter(isProduct)) {
    const path = join(source, file);
    for (const [, specifier = ""] of readFileSync(path, "utf8").matchAll(/(?:from |import\()"(\.[^"]+)"/g)) {
      const imported = featureOf(join(path, "..", specifier));
      if (imported === undefined || imported === "index.ts" || imported === featureOf(path)) continue;
      imports.push(`${file}: ${imported}`);
    }
  }
  const own = readdirSync(here).filter((name) => name !== "index.ts" && (isProduct(name) || !name.includes(".")));
  expect(imports.sort()).toEqual(own.map((name) => `server/features/index.ts: ${name}`).sort());
  expect(features).toHaveLength(own.length);
});

test("without features a client trains, saves and samples, and other calls do not exist", async () => {
  const client = await testClient({ features: [] });
  const { session, id } = await client.model();
  await client.cross(id, 1);
  await client.finish("optim_step", { model_id: id, seq_id: 2, ...adam() });
  const { path } = await client.finish("save_weights", { model_id: id, seq_id: 3, path: "one" });
  const { sampling_session_id } = await client.finish("save_weights_for_sampler", {
    ...{ model_id: id, seq_id: 4, sampling_session_seq_id: 0 },
  });
  const prompt = { chunks: [{ type: "encoded_text", tokens: [5, 6] }] };
  const sample = { sampling_session_id, seq_id: 0, prompt, sampling_params: { max_tokens: 2, seed: 1 } };
  expect((await client.result("asample", sample)).status).toBe(200);
  await client.finish("load_weights", { session_id: session, model_seq_id: 1, path, optimizer: true });
  const status = async (method: string, address: string) =>
    (await client.request(method, address, method === "POST" ? {} : undefined)).status;
  for (const address of ["sessions", "training_runs", "checkpoints", "billing/usage/checkpoints/current", "audit"])
    expect([address, await status("GET", `/api/v1/${address}`)]).toEqual([address, 404]);
  for (const address of ["/api/v1/sessions/search", "/api/v1/copy_weights", "/inference/v1/generate", "/tokenize"])
    expect([address, await status("POST", address)]).toEqual([address, 404]);
  await client.sweep();
  await client.dispose();
});

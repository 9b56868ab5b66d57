import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { expect, test } from "vitest";
import { adam, testClient } from "./client.fixture.ts";

const source = fileURLToPath(new URL("../..", import.meta.url));
const isProduct = (file: string) => file.endsWith(".ts") && !/\.(test|e2e|fixture)\.ts$/.test(file);

/** The features with a file of their own. */
const leaves = ["search", "uploads", "usage", "vllm-routes"].map((name) => `apps/server/${name}.ts`);

test("a feature is a leaf: only the list of features imports it, and only the server imports the list", () => {
  const imports: string[] = [];
  for (const file of readdirSync(source, { recursive: true, encoding: "utf8" }).filter(isProduct)) {
    for (const [, specifier = ""] of readFileSync(join(source, file), "utf8").matchAll(
      /(?:from |import\()"(\.[^"]+)"/g,
    )) {
      const imported = join(file, "..", specifier);
      if ([...leaves, "apps/server/features.ts"].includes(imported)) imports.push(`${imported} by ${file}`);
    }
  }
  expect(imports.sort()).toEqual([
    "apps/server/features.ts by apps/cli/serve.ts",
    ...leaves.map((leaf) => `${leaf} by apps/server/features.ts`),
  ]);
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

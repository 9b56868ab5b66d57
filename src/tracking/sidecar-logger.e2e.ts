/** The official clients of Weights & Biases, MLflow and Trackio, each with a store on this machine. */
import { mkdirSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import Database from "libsql";
import { afterAll, beforeAll, expect, it } from "vitest";
import { temporaryFolder } from "../temporary-folder.fixture.ts";
import { openPng } from "./plots.ts";
import { type ClientName, sidecarLogger } from "./sidecar-logger.ts";
import { clientInstallCommand, startSidecar } from "./start-sidecar.ts";

const folder = temporaryFolder("clients");
const database = join(folder, "mlflow.db");
const own = {
  WANDB_MODE: "offline",
  MLFLOW_TRACKING_URI: `sqlite:///${database}`,
  // Otherwise mlruns/ of the working directory.
  _MLFLOW_SERVER_ARTIFACT_ROOT: join(folder, "mlruns"),
  TRACKIO_DIR: join(folder, "trackio"),
};
const before = { ...process.env };
beforeAll(() => void Object.assign(process.env, own));
afterAll(() => {
  for (const name of Object.keys(own)) delete process.env[name];
  Object.assign(process.env, before);
});

/** Records two steps; the second is that of a resumed run, with another configuration. */
async function record(client: ClientName): Promise<void> {
  const directory = join(folder, "sums-first-1");
  mkdirSync(directory, { recursive: true });
  const png = (await openPng(expect.unreachable))!(
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 4 3"><rect width="4" height="3"/></svg>',
  );
  const file = join(directory, "reward.png");
  writeFileSync(file, png.bytes);
  for (const step of [1, 2]) {
    const logger = await sidecarLogger({
      ...{ client, project: "sums", name: "first", id: "sums-first-1", entity: null, directory },
      start: () => startSidecar(client, join(folder, `${client}.log`)),
      installCommand: clientInstallCommand(client),
      config: {
        training: { step, keys: ["a"] },
        ...Object.fromEntries(Array.from({ length: 150 }, (_, n) => [`k${n}`, n])),
      },
      onWarning: (text) => expect.unreachable(text),
    });
    const metrics = { "val/sums/pass@2": step / 4, "actor/loss": Number.NaN };
    const row = { task: "sums/0:0", prompt: "2+2?", reply: "4", reward: null, reason: "" };
    logger.event({ type: "samples", step, kind: "train", rows: [row] });
    logger.event({
      type: "distributions",
      step,
      values: { response_length: [1, 2], reward: [], entropy: [] },
      limit: 4,
    });
    logger.event({ type: "plot", step, name: "reward", file, ...png });
    logger.event({ type: "step-end", step, total: 2, epoch: 0, metrics, seconds: 1 });
    logger.event({ type: "run-end", reason: step === 1 ? "failed" : "done" });
    await logger.close();
  }
}

const query = (file: string, sql: string) => {
  const store = new Database(file, { readonly: true });
  try {
    return store.prepare(sql).all() as Record<string, unknown>[];
  } finally {
    store.close();
  }
};
const files = (root: string) =>
  (readdirSync(root, { recursive: true }) as string[]).map((file) => file.replaceAll("\\", "/"));

it("Weights & Biases gets tables, histograms and images", async () => {
  await record("wandb");
  const written = files(join(folder, "sums-first-1", "wandb")).filter((file) => file.startsWith("offline-run-"));
  expect(written.filter((file) => /media\/images\/plots\/reward_\d_\w+\.png$/.test(file))).toHaveLength(2);
  expect(written.filter((file) => /media\/table\/samples\/train_\d_\w+\.table\.json$/.test(file))).toHaveLength(2);
}, 240_000);

it("MLflow continues a resumed run", async () => {
  await record("mlflow");
  const [run, ...others] = query(database, "SELECT run_uuid, name, status, artifact_uri FROM runs");
  expect([run, others]).toMatchObject([{ name: "first", status: "FINISHED" }, []]);
  expect(query(database, "SELECT key, step, value, is_nan FROM metrics ORDER BY key, step")).toMatchObject([
    { key: "actor/loss", step: 1, is_nan: 1 },
    { key: "actor/loss", step: 2, is_nan: 1 },
    { key: "val/sums/pass_2", step: 1, value: 0.25 },
    { key: "val/sums/pass_2", step: 2, value: 0.5 },
  ]);
  expect(query(database, "SELECT count(*) AS count FROM params")).toEqual([{ count: 152 }]);
  expect(query(database, "SELECT value FROM params WHERE key = 'training.step'")).toEqual([{ value: "1" }]);
  const artifacts = String(run!.artifact_uri).replace(/^file:\/\//, "");
  const config = JSON.parse(readFileSync(join(artifacts, "config.json"), "utf8"));
  expect(config.training).toEqual({ step: 2, keys: ["a"] });
  expect(files(artifacts)).toEqual(
    expect.arrayContaining([
      ...["plots/reward.png", "samples/train/step-000001.json", "samples/train/step-000002.json"],
      ...["distribution/response_length/step-000001.json", "distribution/response_length/step-000002.json"],
    ]),
  );
}, 240_000);

it("Trackio continues a resumed run", async () => {
  await record("trackio");
  const rows = query(join(own.TRACKIO_DIR, "sums.db"), "SELECT run_name, step, metrics FROM metrics ORDER BY id");
  const logged = rows.map(({ run_name, step, metrics }) => ({
    ...{ run_name, step },
    ...(JSON.parse(Buffer.from(metrics as Uint8Array).toString()) as object),
  }));
  const ofStep = (step: number) => [
    { "samples/train": { _type: "trackio.table" } },
    { "distribution/response_length": { _type: "trackio.histogram" } },
    { "plots/reward": { _type: "trackio.image" } },
    { "val/sums/pass@2": step / 4, "actor/loss": "NaN" },
  ];
  expect(logged).toMatchObject(
    [1, 2].flatMap((step) => ofStep(step).map((metrics) => ({ run_name: "sums-first-1", step, ...metrics }))),
  );
}, 240_000);

it("an MLflow server that does not answer refuses the run", async () => {
  process.env.MLFLOW_TRACKING_URI = "http://127.0.0.1:1";
  await expect(record("mlflow")).rejects.toThrow(/^MLflow did not accept the run: .*127\.0\.0\.1/s);
}, 240_000);

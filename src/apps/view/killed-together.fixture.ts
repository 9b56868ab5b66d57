/** A process for tests: trains the toy in a run folder until it is killed, or serves the viewer and prints its address. */
import { join } from "node:path";
import { openToy, toy } from "../../trainer/toy-experiment.fixture.ts";
import { train } from "../../trainer/train.ts";
import { startViewer } from "./server.ts";

const [what, root = ""] = process.argv.slice(2);
if (what === "train") {
  const overrides = [`rllm.trainer.run_dir=${join(root, "runs", "toy")}`];
  await train(toy({ rllm: { trainer: { total_batches: 1_000_000 } } }), { engine: openToy(), overrides });
} else {
  const path = join(root, "runs");
  const viewer = await startViewer({ path, host: "127.0.0.1", port: 0, page: root, cache: join(root, "cache") });
  process.stdout.write(`${viewer.url}\n`);
}

/** `hone sft` on rows with images, compared with transformers' own forward, autograd and AdamW on the same tokens. */
import { join } from "node:path";
import { expect, it } from "vitest";
import { openChat } from "../backends/backends.ts";
import type { Engine } from "../backends/engine.ts";
import { openLocalEngine } from "../backends/local/engine.ts";
import { makeTinyVisionModel, runPython } from "../base/python.fixture.ts";
import { composeConfig } from "../config/compose.ts";
import { fromRows } from "../data/dataset.ts";
import { dataUrl, png } from "../images/pictures.fixture.ts";
import { nightly } from "../nightly.fixture.ts";
import { temporaryFolder } from "../temporary-folder.fixture.ts";
import { train } from "../trainer/train.ts";
import type { Sequence } from "../trajectories/types.ts";
import { sft } from "./sft.ts";

const root = temporaryFolder("sft-images");
const rate = 3e-3;

const pictures = [
  png(20, 28, [250, 10, 10]),
  png(44, 17, [10, 10, 250]),
  png(31, 31, [10, 250, 10]),
  png(9, 40, [99, 9, 9]),
];
const rows = ["red", "blue", "some green", "dark red"].map((color, index) => ({
  messages: [
    {
      role: "user",
      content: [
        { type: "image_url", image_url: { url: dataUrl(pictures[index]!) } },
        { type: "text", text: "What color?" },
      ],
    },
    { role: "assistant", content: color },
  ],
}));

/** The engine, and the sequences of each step of its learner. */
function recording(engine: Engine): { engine: Engine; steps: (readonly Sequence[])[] } {
  const steps: (readonly Sequence[])[] = [];
  return {
    steps,
    engine: {
      ...engine,
      async createPolicy(spec) {
        const { learner, sampler } = await engine.createPolicy(spec);
        const { trainStep: _, ...rest } = learner;
        const recorded = {
          ...rest,
          forwardBackward: (sequences: readonly Sequence[], loss: Parameters<typeof learner.forwardBackward>[1]) => {
            steps.push(sequences);
            return learner.forwardBackward(sequences, loss);
          },
        };
        return { learner: recorded, sampler };
      },
    },
  };
}

it.runIf(nightly).each(["smolvlm", "qwen2_vl"])("%s: losses and gradient norms of transformers", async (family) => {
  const model = await makeTinyVisionModel(root, family);
  const local = await openLocalEngine({ model, device: "cpu", dtype: "float32", threads: 1 });
  try {
    const { engine, steps } = recording(local);
    // With a small eps, Adam amplifies rounding.
    const overrides = [
      ...[`model.name=${model}`, "model.lora_rank=0", "model.train_vision=true", `training.learning_rate=${rate}`],
      ...["training.lr_schedule=constant", "training.eps=1e-4", "training.weight_decay=0", "data.shuffle=false"],
      ...["data.train_batch_size=2", "rllm.trainer.save_freq=0", "rllm.trainer.logger=[]"],
      `rllm.trainer.run_dir=${join(root, `run-${family}`)}`,
    ];
    const { config } = composeConfig({ overrides });
    const { history } = await train(sft({ data: fromRows("pictures", rows) }), {
      engine: { engine, chat: await openChat(local.model.directory, config, () => {}) },
      overrides,
    });
    expect(steps).toHaveLength(2);
    let row = 0;
    const input = {
      ...{ base: model, rate, betas: [config.training.beta1, config.training.beta2], eps: 1e-4 },
      steps: steps.map((sequences) =>
        sequences.map(({ tokens, trained }) => ({
          ...{ tokens: [...tokens], trained: [...trained], image: pictures[row++]!.toString("base64") },
        })),
      ),
    };
    const lines = (await runPython("check_image_sft.py", [], input)).trim().split("\n");
    for (const [index, line] of lines.entries()) {
      const { loss, norm } = JSON.parse(line) as { loss: number; norm: number };
      const { metrics } = history[index]!;
      expect(Math.abs(metrics["actor/loss"]! - loss)).toBeLessThan(1e-5 * Math.max(1, loss));
      expect(Math.abs(metrics["actor/grad_norm"]! - norm)).toBeLessThan(1e-4 * Math.max(1, norm));
    }
  } finally {
    await local.close();
  }
});

/** A small model that reads pictures: SmolLM2 with a new vision part, in SmolVLM's architecture, warmed up on captions. */
import { existsSync, mkdirSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { basename, join, resolve } from "node:path";
import { type ChatMessage, fineTune, generated } from "hone";
import { addVision } from "./add-vision.ts";
import { draw, type Picture, pictures } from "./pictures.ts";

/** The model that gets a vision part, how many of its layers are kept, the pictures of the warm-up, and where it is kept. */
const {
  BASE_MODEL = "smollm2-135m-instruct",
  LAYERS = "6",
  WARM_UP = "1600",
  PICTURE_MODEL = join(".hone", "models", `pictures-${LAYERS}-${WARM_UP}-${basename(BASE_MODEL)}`),
} = process.env;

export const prompt = (picture: Picture): ChatMessage[] => [
  { role: "user", content: [{ type: "image", image: draw(picture) }] },
];
export const caption = ({ color, shape }: Picture) => `${color} ${shape}`;

/** Trains the model in `from` on pictures with captions, and writes the result to `to`. */
async function warmUp(from: string, to: string, name: string, size: number, learningRate: number): Promise<void> {
  const { task } = pictures(name, size);
  await fineTune({
    model: from,
    folder: to,
    data: generated("captions", size, (index): ChatMessage[] => {
      const { row } = task(index);
      return [...prompt(row), { role: "assistant", content: caption(row) }];
    }),
    batchSize: 16,
    learningRate,
    trainVision: true,
    onStep({ step, steps, loss }) {
      if (step % 10 === 0) console.error(`${name}: step ${step}/${steps}, cross-entropy ${loss.toFixed(2)}`);
    },
  });
}

/** The folder of the model, which is made and warmed up unless an earlier run did that. */
export async function pictureModel(): Promise<string> {
  const folder = resolve(PICTURE_MODEL);
  if (existsSync(folder)) return folder;
  console.error(`making a model that reads pictures, once: ${PICTURE_MODEL}`);
  const work = mkdtempSync(join(tmpdir(), "hone-pictures-"));
  const [untrained, begun] = [join(work, "untrained"), join(work, "begun")];
  try {
    mkdirSync(untrained);
    await addVision(BASE_MODEL, Number(LAYERS), untrained);
    await warmUp(untrained, begun, "warm-up", Number(WARM_UP), 2e-3);
    await warmUp(begun, folder, "warm-up at a lower rate", Math.ceil(0.4 * Number(WARM_UP)), 1e-3);
  } finally {
    rmSync(work, { recursive: true, force: true });
  }
  return folder;
}

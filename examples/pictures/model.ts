/** A small model that reads pictures: SmolLM2 with a new vision part, in SmolVLM's architecture, warmed up on captions. */
import { existsSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { basename, join, resolve } from "node:path";
import { type ChatMessage, fineTune, generated } from "hone-rl";
import { addVision } from "./add-vision.ts";
import { draw, type Picture, pictures } from "./pictures.ts";

/** The model that gets a vision part, how many of its layers it keeps, the most pictures of the warm-up, and the result. */
const {
  BASE_MODEL = "smollm2-135m-instruct",
  LAYERS = "6",
  WARM_UP = "3200",
  PICTURE_MODEL = join(".hone", "models", `pictures-${LAYERS}-${WARM_UP}-${basename(BASE_MODEL)}`),
} = process.env;

export const prompt = (picture: Picture): ChatMessage[] => [
  { role: "user", content: [{ type: "image", image: draw(picture) }] },
];
export const caption = ({ color, shape }: Picture) => `${color} ${shape}`;

/**
 * Trains the model in `from` on pictures with captions until it can name the color, but not always the shape, and writes
 * the result to `to`.
 */
async function warmUp(from: string, to: string, size: number): Promise<void> {
  const { task } = pictures("captions", size);
  const losses: number[] = [];
  await fineTune({
    model: from,
    folder: to,
    data: generated("captions", size, (index): ChatMessage[] => {
      const { row } = task(index);
      return [...prompt(row), { role: "assistant", content: caption(row) }];
    }),
    batchSize: 16,
    learningRate: 3e-4,
    loraRank: 0,
    trainVision: true,
    onStep({ step, steps, loss }) {
      losses.push(loss);
      const recent = losses.slice(-10).reduce((sum, one) => sum + one / 10, 0);
      if (step % 10 === 0) {
        console.error(`warm-up: step ${step} of at most ${steps}, cross-entropy ${recent.toFixed(2)}`);
      }
      return step < 10 || recent > 0.35;
    },
  });
}

/** The folder of the model, which is made and warmed up unless an earlier run did that. */
export async function pictureModel(): Promise<string> {
  const folder = resolve(PICTURE_MODEL);
  if (existsSync(folder)) return folder;
  console.error(`making a model that reads pictures, once: ${PICTURE_MODEL}`);
  const work = mkdtempSync(join(tmpdir(), "hone-pictures-"));
  try {
    await addVision(BASE_MODEL, Number(LAYERS), work);
    await warmUp(work, folder, Number(WARM_UP));
  } finally {
    rmSync(work, { recursive: true, force: true });
  }
  return folder;
}

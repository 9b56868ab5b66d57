/** A small model that reads pictures: SmolLM2 with a new vision part, in SmolVLM's architecture, warmed up on captions. */
import { existsSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { basename, join, resolve } from "node:path";
import { type ChatMessage, type Dataset, fineTune, generated } from "hone";
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

const captions = (size: number): Dataset<ChatMessage[]> => {
  const { task } = pictures("warm-up", size);
  return generated("captions", size, (index) => {
    const { row } = task(index);
    return [...prompt(row), { role: "assistant", content: caption(row) }];
  });
};

/** The folder of the model, which is made and warmed up unless an earlier run did that. */
export async function pictureModel(): Promise<string> {
  const folder = resolve(PICTURE_MODEL);
  if (existsSync(folder)) return folder;
  console.error(`making a model that reads pictures, once: ${PICTURE_MODEL}`);
  const untrained = mkdtempSync(join(tmpdir(), "hone-pictures-"));
  try {
    await addVision(BASE_MODEL, Number(LAYERS), untrained);
    await fineTune({
      model: untrained,
      folder,
      data: captions(Number(WARM_UP)),
      batchSize: 16,
      learningRate: 2e-3,
      trainVision: true,
      onStep({ step, steps, loss }) {
        if (step % 10 === 0) console.error(`warm-up: step ${step}/${steps}, cross-entropy ${loss.toFixed(2)}`);
      },
    });
  } finally {
    rmSync(untrained, { recursive: true, force: true });
  }
  return folder;
}

/** Converts an engine's image support into the form that conversations need. */
import type { Engine } from "../backends/engine.ts";
import type { Blind, Vision } from "../chat/images/prepare-images.ts";
import { type Fetching, imageLoader } from "../images/load-image.ts";

export function visionOf(
  { images, imagesReason, model }: Pick<Engine, "images" | "imagesReason" | "model">,
  fetching?: Fetching,
): Vision | Blind {
  if (images === undefined) return imagesReason ?? `${model.name} reads only text`;
  const { placeholder, tokensOf, store } = images;
  return { placeholder, tokensOf, loader: imageLoader(store, fetching) };
}

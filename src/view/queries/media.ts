/** An image of a run's messages, by its hash. */
import { UserError } from "../../errors.ts";
import { readInside } from "../../files/regular-file.ts";
import { checkImage, imageLimits } from "../../images/image-limits.ts";
import { imageFile, mediaFolder } from "../../images/media-store.ts";
import type { ImageType } from "../../images/types.ts";

export interface MediaFile {
  bytes: Uint8Array;
  type: ImageType;
}

/**
 * @param folder of the run
 * @throws UserError if the run does not have the image, or its file is not an image within the limits
 */
export function mediaFile(folder: string, hash: string): MediaFile {
  if (!/^[0-9a-f]{64}$/.test(hash)) throw new UserError(`${hash.slice(0, 80)} is not the hash of an image`);
  const read = (type: ImageType) =>
    readInside(folder, `${mediaFolder}/${imageFile({ hash, type })}`, imageLimits.bytes);
  const bytes = read("image/png") ?? read("image/jpeg");
  if (bytes === undefined) throw new UserError(`the run has no image ${hash}`, { code: "not_found" });
  return { bytes, type: checkImage(bytes).type };
}

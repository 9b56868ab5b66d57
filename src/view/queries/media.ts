/** An image of a run's messages, by its hash. */
import { join } from "node:path";
import { UserError } from "../../errors.ts";
import { checkImage } from "../../images/image-limits.ts";
import { folderStore, mediaFolder } from "../../images/media-store.ts";
import type { ImageType } from "../../images/types.ts";

export interface MediaFile {
  bytes: Uint8Array;
  type: ImageType;
}

/**
 * @param folder of the run
 * @throws UserError if the run does not have the image; for a file that is not an image within the limits
 */
export async function mediaFile(folder: string, hash: string): Promise<MediaFile> {
  if (!/^[0-9a-f]{64}$/.test(hash)) throw new UserError(`${hash.slice(0, 80)} is not the hash of an image`);
  const store = folderStore(join(folder, mediaFolder));
  const bytes = await store.read(hash).catch((cause: unknown) => {
    throw new UserError(`the run has no image ${hash}`, { code: "not_found", cause });
  });
  return { bytes, type: checkImage(bytes).type };
}

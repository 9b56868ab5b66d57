/** Opens a dataset by its name: the extension or the prefix selects the format. */
import { basename } from "node:path";
import { UserError } from "../errors.ts";
import { fileDataset } from "./file-dataset.ts";
import { openHubSpec } from "./hub.ts";
import { openJsonl } from "./jsonl.ts";
import { openParquet } from "./parquet.ts";
import type { Dataset, FileRow } from "./types.ts";

/**
 * The rows of a file or of a dataset on the Hugging Face hub.
 *
 * @param spec a `.jsonl` or `.parquet` file, or `hub:organization/name?config=main&split=train`
 * @example
 * const rows = await openDataset("data/train.jsonl");
 * @throws UserError when the dataset cannot be opened or a row is invalid (`file:line`)
 */
export async function openDataset(spec: string): Promise<Dataset<FileRow>> {
  if (spec.startsWith("hub:")) return openHubSpec(spec);
  const name = basename(spec).replace(/\.[^.]*$/, "");
  if (/\.(jsonl|ndjson)$/i.test(spec)) return fileDataset(name, openJsonl(spec));
  if (/\.parquet$/i.test(spec)) return fileDataset(name, await openParquet(spec));
  throw new UserError(`${spec}: not a dataset; use a .jsonl or .parquet file, or hub:organization/name`, {
    hint: /\.(json|csv|tsv)$/i.test(spec)
      ? "Convert the file to .jsonl: one JSON object per line, one line per task."
      : /^[\w.-]+\/[\w.-]+$/.test(spec)
        ? `For a hub dataset, write "hub:${spec}".`
        : "The file extension selects the format.",
  });
}

/** A dataset by its name: the extension or the prefix says how it is read. */
import { basename } from "node:path";
import { UserError } from "../errors.ts";
import { fileDataset } from "./file-dataset.ts";
import { openHubSpec } from "./hub.ts";
import { openJsonl } from "./jsonl.ts";
import { openParquet } from "./parquet.ts";
import type { Dataset, FileRow } from "./types.ts";

/**
 * @param spec a `.jsonl` or `.parquet` file, or `hub:organisation/name?config=main&split=train`
 * @example
 * const rows = await openDataset("data/train.jsonl");
 * @throws UserError when it cannot be opened, or a row of it is broken (`file:line`)
 */
export async function openDataset(spec: string): Promise<Dataset<FileRow>> {
  if (spec.startsWith("hub:")) return openHubSpec(spec);
  const name = basename(spec).replace(/\.[^.]*$/, "");
  if (/\.(jsonl|ndjson)$/i.test(spec)) return fileDataset(name, openJsonl(spec));
  if (/\.parquet$/i.test(spec)) return fileDataset(name, await openParquet(spec));
  throw new UserError(`${spec}: a dataset is a .jsonl or .parquet file, or hub:organisation/name`, {
    hint: /\.(json|csv|tsv)$/i.test(spec)
      ? "Convert the file to .jsonl: one JSON object a line, one line a task."
      : /^[\w.-]+\/[\w.-]+$/.test(spec)
        ? `For a dataset of the hub, write "hub:${spec}".`
        : "The name's ending says how the file is read.",
  });
}

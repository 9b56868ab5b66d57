/** A tabular policy on disk: one JSON file in a folder that is either complete or absent. */
import { existsSync } from "node:fs";
import { mkdir, readFile, rename, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { z } from "zod";
import { UserError } from "../errors.ts";
import { temporaryName } from "../files/temporary-names.ts";
import type { AdamState } from "./adam.ts";

const numbers = z.array(z.number()).transform((list) => Float64Array.from(list));
const schema = z.strictObject({
  version: z.int(),
  parameters: numbers,
  steps: z.int(),
  first: numbers,
  second: numbers,
});

export interface TabularState extends AdamState {
  /** Version of the published weights. */
  version: number;
  parameters: Float64Array;
}

/** @throws UserError when `dir` exists */
export async function saveTabularState(dir: string, state: TabularState): Promise<void> {
  if (existsSync(dir)) throw new UserError(`${dir} already exists`);
  const partial = temporaryName(dir);
  await mkdir(partial, { recursive: true });
  const plain = (_key: string, value: unknown) => (value instanceof Float64Array ? [...value] : value);
  await writeFile(join(partial, "state.json"), JSON.stringify(state, plain));
  await rename(partial, dir);
}

/** @throws UserError when there is no state in `dir`, or one of another number of parameters */
export async function loadTabularState(dir: string, count: number): Promise<TabularState> {
  const file = join(dir, "state.json");
  if (!existsSync(file)) throw new UserError(`no state.json in ${dir}`);
  const parsed = schema.safeParse(JSON.parse(await readFile(file, "utf8")));
  if (!parsed.success) throw new UserError(`${file} is not a tabular policy's state: ${z.prettifyError(parsed.error)}`);
  const { length } = parsed.data.parameters;
  if (length !== count) throw new UserError(`${file} contains ${length} parameters, but this policy has ${count}`);
  return parsed.data;
}

/** The table of docs/guide/one-gpu.md, from the arithmetic's results, and that of docs/guide/performance.md, from a proof's. */
import { existsSync, readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { pageWithTables, table } from "./tables.ts";

interface Row {
  model: string;
  trains: "lora" | "full";
  optimizer: string;
  tokens: number;
  /** From fast to lean. */
  ways: { recomputes: boolean; merged: boolean; needed: number }[];
}

const gibibytes = [24, 48, 80, 141];
/** What is free for tensors of a card's memory: the driver, CUDA and blocks of the allocator take the rest. */
const usable = 0.92;

const read = (path: string): unknown =>
  JSON.parse(readFileSync(fileURLToPath(new URL(`../../../${path}`, import.meta.url)), "utf8"));

export const oneGpuPage = () => pageWithTables("docs/guide/one-gpu.md", [memoryTable()]);

function memoryTable(): string {
  const rows = (read("docs/guide/memory.json") as Row[]).map(({ model, trains, optimizer, tokens, ways }) => [
    model,
    trains === "lora" ? "LoRA 16" : optimizer === "adamw" ? "all weights" : "all weights, `adamw_8bit`",
    tokens.toLocaleString("en"),
    ...gibibytes.map((size) => cell(ways, size * 2 ** 30 * usable)),
  ]);
  return table(["model", "trained", "tokens", ...gibibytes.map((size) => `${size} GB`)], rows);
}

function cell(ways: Row["ways"], room: number): string {
  const way = ways.find(({ needed }) => needed <= room);
  if (way === undefined) return `no: ${inGb(ways.at(-1)!.needed)}`;
  const how = [...(way.recomputes ? ["R"] : []), ...(way.merged ? [] : ["A"])].join(", ");
  return `${inGb(way.needed)}${how && ` (${how})`}`;
}

const inGb = (bytes: number) => `${(bytes / 2 ** 30).toFixed(1)} GB`;

interface Proof {
  device: string;
  torch: string;
  transformers: string;
  rows: {
    part: string;
    what: string;
    values?: Readonly<Record<string, unknown>>;
    skipped?: string;
    failed?: string;
  }[];
}

const proofFile = "docs/guide/gpu.json";

export const performancePage = () => pageWithTables("docs/guide/performance.md", [gpuTable()]);

/** The results of `npm run proof -- gpu`, once they are stored in docs/guide. */
function gpuTable(): string {
  if (!existsSync(fileURLToPath(new URL(`../../../${proofFile}`, import.meta.url)))) return "Not run on a GPU so far.";
  const { device, torch, transformers, rows } = read(proofFile) as Proof;
  const results = rows.map(({ part, what, values, skipped, failed }) => {
    const shown = values && Object.entries(values).map(([name, value]) => `${name} ${value}`);
    return [part, what, shown?.join(", ") ?? (skipped === undefined ? `failed: ${failed}` : `skipped: ${skipped}`)];
  });
  return `On one ${device} with torch ${torch} and transformers ${transformers}:\n\n${table(["part", "what", "result"], results)}`;
}

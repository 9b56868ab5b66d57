/** The README's table of what each backend supports, from the descriptors of the backends. */

import { capabilitiesOf } from "../../../src/backends/backends.ts";
import type { Capabilities } from "../../../src/backends/engine.ts";
import { composeConfig } from "../../../src/config/compose.ts";
import { backends } from "../../../src/config/schema/backends.ts";
import { pageWithTables, table } from "./tables.ts";

const rows: readonly (readonly [string, (capabilities: Capabilities) => string | boolean])[] = [
  ["LoRA", ({ adapters }) => adapters.includes("lora")],
  ["training all weights", ({ adapters }) => adapters.includes("full")],
  ["a critic (`gae`)", ({ outputs }) => outputs.includes("values")],
  ["entropy bonuses", ({ outputs }) => outputs.includes("entropy")],
  ["`optimal_token_baseline`", ({ outputs }) => outputs.includes("concentration")],
  ["sampling", ({ sampling }) => listed(sampling, ["top_p", "top_k", "min_p"])],
  ["images", ({ images }) => images],
  ["exports", ({ exports }) => listed(exports, ["adapter", "merged"])],
];

/** README.md with an up-to-date table between its marks. */
export const readmeWithTable = () => pageWithTables("README.md", [backendTable()]);

function backendTable(): string {
  const columns = backends.map((backend) =>
    capabilitiesOf(composeConfig({ overrides: [`rllm/backend=${backend}`] }).config),
  );
  return table(
    ["`rllm/backend=`", ...backends.map((backend) => `\`${backend}\``)],
    rows.map(([name, of]) => [name, ...columns.map((capabilities) => cell(of(capabilities)))]),
  );
}

function cell(value: string | boolean): string {
  return typeof value === "string" ? value : value ? "yes" : "no";
}

function listed(supported: readonly string[], names: readonly string[]): string {
  return names
    .filter((name) => supported.includes(name))
    .map((name) => `\`${name}\``)
    .join(", ");
}

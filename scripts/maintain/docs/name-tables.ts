/** The tables of "coming from" pages: names of settings in other systems, from the table that answers who writes them as a key. */
import { namesOf } from "../../../src/config/check.ts";
import { configKeys } from "../../../src/config/schema.ts";
import { pageWithTables, table } from "./tables.ts";

/** The systems of each page, in the order of its tables. */
const pages: Readonly<Record<string, readonly string[]>> = {
  "docs/guide/from-trl.md": ["TRL"],
  "docs/guide/from-rllm.md": ["rLLM"],
  "docs/guide/from-lightrft.md": ["LightRFT"],
  "docs/guide/from-others.md": ["OpenRLHF", "verl", "the Tinker cookbook"],
};

export const namePages = Object.fromEntries(
  Object.entries(pages).map(([path, systems]) => [path, () => pageWithTables(path, systems.map(nameTable))]),
);

function nameTable(system: string): string {
  const flag = system === "LightRFT" ? "--" : "";
  return table(
    [system.replace(/^the /, ""), "Hone", "meaning"],
    namesOf(system).map(([theirs, ours]) => {
      const [key = "", rest = ""] = split(ours);
      return [`\`${flag}${theirs}\``, `\`${key}\`${rest}`, configKeys.get(key)?.description ?? ""];
    }),
  );
}

/** A value begins with a key; what follows is text. */
const split = (ours: string) => [/^[\w.]+(=\w+)?/.exec(ours)?.[0], ours.replace(/^[\w.]+(=\w+)?/, "")];

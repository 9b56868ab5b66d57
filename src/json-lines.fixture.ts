import { readFileSync } from "node:fs";

export const parseLines = <Line>(text: string): Line[] =>
  text
    .trim()
    .split("\n")
    .map((line) => JSON.parse(line) as Line);

export const readLines = <Line>(file: string | URL): Line[] => parseLines<Line>(readFileSync(file, "utf8"));

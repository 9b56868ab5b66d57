/** The guide's tables of estimators and losses, from their definitions. */
import { type DivergenceDefinition, divergences } from "../../../src/algorithms/distillation.ts";
import { type EstimatorSpec, estimators } from "../../../src/algorithms/estimators.ts";
import { lossDefaults, namedLosses } from "../../../src/algorithms/policy-losses.ts";
import { pageWithTables, table } from "./tables.ts";

export const guideWithTables = () =>
  pageWithTables("docs/guide/choosing-an-algorithm.md", [estimatorTable(), lossTable()]);

export const teacherGuideWithTable = () =>
  pageWithTables("docs/guide/distillation.md", [
    table(
      ["`loss_mode`", "loss of a position", "source"],
      Object.entries<DivergenceDefinition>(divergences).map(([name, { formula, source }]) => [
        code(name),
        code(formula),
        linked(source),
      ]),
    ),
  ]);

function estimatorTable(): string {
  const rows = new Map<EstimatorSpec, string[]>();
  for (const [name, spec] of Object.entries<EstimatorSpec>(estimators)) {
    rows.set(spec, [...(rows.get(spec) ?? []), code(name)]);
  }
  return table(
    ["`adv_estimator`", "advantage", "source"],
    [...rows].map(([{ formula, source }, names]) => [names.join(", "), formula, linked(source)]),
  );
}

function lossTable(): string {
  const rows = new Map<string, string[]>();
  for (const [name, { aliases = [], formula, source, constants, aggMode }] of namedLosses) {
    const known: Readonly<Record<string, unknown>> = lossDefaults;
    const defaults = Object.keys(constants).map((constant) => code(`${constant}: ${known[constant]}`));
    const averaged = aggMode === undefined ? "" : "; averaged by reply";
    const cells = [`${formula}${averaged}`, defaults.join(", "), linked(source)];
    const key = JSON.stringify(cells);
    rows.set(key, [...(rows.get(key) ?? []), ...[name, ...aliases].map(code)]);
  }
  return table(
    ["`loss_fn`", "loss", "constants", "source"],
    [...rows].map(([cells, names]) => [names.join(", "), ...(JSON.parse(cells) as string[])]),
  );
}

const code = (text: string) => `\`${text}\``;

const linked = (source: string) =>
  source.replaceAll(/\d{4}\.\d{5}/g, (paper) => `[${paper}](https://arxiv.org/abs/${paper})`);

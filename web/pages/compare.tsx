/** Compares several runs: overlaid curves, and the differences of their configurations. */
import { useMemo } from "preact/hooks";
import type { Curves } from "../../src/apps/view/queries/curves.ts";
import type { ConfigEntry, RunConfig } from "../../src/apps/view/queries/run.ts";
import { Empty, Link, Pending } from "../parts/basics.tsx";
import { Chart } from "../parts/chart.tsx";
import { ChartControls } from "../parts/chart-controls.tsx";
import { toNumber } from "../parts/numbers.ts";
import { seriesColor } from "../parts/plot.ts";
import { printable } from "../parts/printable.ts";
import { address, parameter, setParameters } from "../state/address.ts";
import { type AxisName, axis, axisNames } from "../state/chart-settings.ts";
import { answerTo, type Loaded } from "../state/fetch.ts";
import { knownAxes, placesOn } from "./charts.ts";
import { valueText } from "./configuration.tsx";

const compared = [
  "reward/mean",
  "response_length/mean",
  "actor/entropy",
  "actor/kl_loss",
  "actor/ppo_kl",
  "actor/grad_norm",
  "perf/throughput",
];

export function Compare() {
  const runs = parameter("runs").split(",").filter(Boolean);
  const curves = runs.map((run) => answerTo("/api/runs/:run/curves", { run, kind: "train" }));
  const configs = runs.map((run) => answerTo("/api/runs/:run/config", { run }));
  const error = [...curves, ...configs].find(({ error }) => error)?.error;
  if (runs.length < 2) return <Empty>Choose two or more runs in the list of runs.</Empty>;
  if (error || [...curves, ...configs].some(({ data }) => !data)) return <Pending error={error} />;
  return (
    <>
      <div class="head">
        <h1>Compare {runs.length} runs</h1>
      </div>
      <ul class="legend runs-legend">
        {runs.map((run, index) => (
          <li key={run}>
            <i class="swatch" style={{ background: `var(${seriesColor(index)})` }} />
            <Link to={address(["runs", run])}>{printable(run)}</Link>
          </li>
        ))}
      </ul>
      <Overlays runs={runs} curves={curves} />
      <Differences runs={runs} configs={configs} />
    </>
  );
}

function Overlays({ runs, curves }: { runs: readonly string[]; curves: readonly Loaded<Curves>[] }) {
  const all = [...new Set(curves.flatMap(({ data }) => data?.names ?? []))].sort();
  const asked = parameter("curves").split(",").filter(Boolean);
  const shown = [...compared.filter((name) => all.includes(name)), ...asked];
  const data = curves.flatMap(({ data }) => data ?? []);
  const known = axisNames.filter((name) => data.every((curves) => knownAxes(curves).includes(name)));
  const chosen = known.find((name) => name === axis()) ?? "step";
  const { steps, charts } = useMemo(() => overlay(runs, data, shown, chosen), [...data, shown.join(","), chosen]);
  // Tokens and times of runs differ, so that a place on these axes is not a step.
  const bySteps = chosen === "step";
  const ofAxis = bySteps
    ? { step: Number(parameter("step")) || undefined, onPick: (step: number) => setParameters({ step }) }
    : { step: undefined, x: { name: chosen, at: steps } };
  return (
    <>
      <ChartControls steps={steps} known={known} bySteps={bySteps} />
      <div class="charts">
        {charts.map((chart) => (
          <Chart key={chart.title} {...chart} steps={steps} {...ofAxis} sparse />
        ))}
      </div>
      <label class="field">
        Add a metric
        <select
          value=""
          onChange={(event) => setParameters({ curves: [...asked, event.currentTarget.value].join(",") })}
        >
          <option value="">choose…</option>
          {all
            .filter((name) => !shown.includes(name))
            .map((name) => (
              <option key={name}>{name}</option>
            ))}
        </select>
      </label>
    </>
  );
}

/** The curves of each metric over the places of all runs on an axis. */
export function overlay(
  runs: readonly string[],
  all: readonly Curves[],
  names: readonly string[],
  axis: AxisName = "step",
) {
  const places = all.map((curves) => placesOn(axis, curves)?.at ?? curves.steps);
  const steps = [...new Set(places.flat())].sort((left, right) => left - right);
  const charts = names.map((title) => ({
    title,
    curves: runs.map((label, run) => {
      const curves = all[run];
      const bySteps = new Map(places[run]?.map((place, index) => [place, toNumber(curves?.columns[title]?.[index])]));
      return { label, values: steps.map((step) => bySteps.get(step) ?? null) };
    }),
  }));
  return { steps, charts };
}

/** Keys whose values differ, with the entry of each run. */
export function differences(
  configs: readonly (RunConfig | undefined)[],
): { key: string; entries: (ConfigEntry | undefined)[] }[] {
  const maps = configs.map((config) => new Map(config?.entries.map((entry) => [entry.key, entry])));
  const keys = [...new Set(maps.flatMap((map) => [...map.keys()]))];
  return keys
    .map((key) => ({ key, entries: maps.map((map) => map.get(key)) }))
    .filter(({ entries }) => new Set(entries.map((entry) => (entry ? valueText(entry.value) : undefined))).size > 1);
}

function Differences({ runs, configs }: { runs: readonly string[]; configs: readonly Loaded<RunConfig>[] }) {
  const different = differences(configs.map(({ data }) => data));
  return (
    <section class="card">
      <h2>Configuration</h2>
      {different.length === 0 && <Empty>The configurations are the same.</Empty>}
      {different.length > 0 && (
        <div class="scroll">
          <table class="rows diff-table">
            <thead>
              <tr>
                <th scope="col">key</th>
                {runs.map((run) => (
                  <th scope="col" key={run}>
                    {printable(run)}
                  </th>
                ))}
              </tr>
            </thead>
            <tbody>
              {different.map(({ key, entries }) => (
                <tr key={key}>
                  <th scope="row">
                    <code>{printable(key)}</code>
                  </th>
                  {entries.map((entry, index) => (
                    <td key={runs[index]}>
                      {entry ? <code>{printable(valueText(entry.value))}</code> : <span class="muted">absent</span>}
                      <small class="origin">{printable(entry?.origin?.text ?? "")}</small>
                    </td>
                  ))}
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </section>
  );
}

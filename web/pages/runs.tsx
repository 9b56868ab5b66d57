/** All runs of the folder. */
import { useEffect, useState } from "preact/hooks";
import type { RunSummary } from "../../src/apps/view/queries/run.ts";
import { Empty, Link, Pending, Reward, StateBadge } from "../parts/basics.tsx";
import { ago, atTime, short, toNumber } from "../parts/numbers.ts";
import { oneLine, printable } from "../parts/printable.ts";
import { address, embedded, go, href, parameter, setParameters } from "../state/address.ts";
import { now } from "../state/clock.ts";
import { useAnswer } from "../state/fetch.ts";

export function Runs() {
  const { data, error } = useAnswer("/api/runs", {});
  const columns = parameter("columns").split(",").filter(Boolean);
  const [chosen, choose] = useState<readonly string[]>([]);
  const only = data?.single ? data.runs[0]?.id : undefined;
  useEffect(() => {
    if (only !== undefined) go(address(["runs", only]), { replace: true });
  }, [only]);
  if (!data || only !== undefined) return <Pending error={error} />;
  const words = parameter("q").toLowerCase().split(/\s+/);
  const runs = data.runs.filter((run) => words.every((word) => textOf(run).includes(word)));
  const toggle = (id: string) => choose(chosen.includes(id) ? chosen.filter((one) => one !== id) : [...chosen, id]);
  return (
    <>
      <div class="head">
        <h1>Runs</h1>
        <span class="muted">{printable(data.folder)}</span>
        <input
          type="search"
          placeholder="name, model, state"
          aria-label="search runs"
          value={parameter("q")}
          onInput={(event) => setParameters({ q: event.currentTarget.value })}
        />
        <Link
          class={chosen.length < 2 ? "button disabled" : "button"}
          to={chosen.length < 2 ? "/" : address(["compare"], { runs: chosen.join(",") })}
        >
          Compare {chosen.length < 2 ? "two or more" : chosen.length}
        </Link>
        {embedded === undefined && <ColumnChoice chosen={columns} />}
      </div>
      {runs.length === 0 && (
        <Empty>
          {data.runs.length === 0
            ? "This folder has no runs so far. The first run appears here when it starts."
            : "No run matches."}
        </Empty>
      )}
      {runs.length > 0 && (
        <div class="scroll">
          <table class="rows runs">
            <thead>
              <tr>
                <th scope="col" />
                <th scope="col">run</th>
                <th scope="col">state</th>
                <th scope="col" class="right">
                  step
                </th>
                <th scope="col">reward</th>
                <th scope="col">validation</th>
                {columns.map((name) => (
                  <th key={name} scope="col" class="right">
                    <button
                      type="button"
                      class="link"
                      title="remove this column"
                      aria-label={`remove the column ${name}`}
                      onClick={() => setParameters({ columns: columns.filter((one) => one !== name).join(",") })}
                    >
                      {printable(name)} ×
                    </button>
                  </th>
                ))}
                <th scope="col">model</th>
                <th scope="col" class="right">
                  episodes
                </th>
                <th scope="col">updated</th>
              </tr>
            </thead>
            <tbody>
              {runs.map((run) => (
                <RunRow
                  key={run.id}
                  run={run}
                  columns={columns}
                  chosen={chosen.includes(run.id)}
                  onToggle={() => toggle(run.id)}
                />
              ))}
            </tbody>
          </table>
        </div>
      )}
    </>
  );
}

const textOf = ({ id, model, backend, state, experiment }: RunSummary) =>
  [id, model, backend, state, experiment].join(" ").toLowerCase();

const columnsOf = (names: readonly string[]) => useAnswer("/api/columns", { names: names.join(",") }).data;

/** Adds the newest value of a metric to the list. */
function ColumnChoice({ chosen }: { chosen: readonly string[] }) {
  const names = columnsOf(chosen)?.names ?? [];
  const [unknown, setUnknown] = useState(false);
  const add = (field: HTMLInputElement) => {
    const name = field.value.trim();
    setUnknown(name !== "" && !names.includes(name));
    if (!names.includes(name)) return;
    field.value = "";
    setParameters({ columns: [...new Set([...chosen, name])].join(",") });
  };
  return (
    <>
      <input
        type="text"
        list="metric-names"
        placeholder="add a metric as column"
        aria-label="add a metric as column"
        aria-invalid={unknown}
        title={unknown ? "no run has this metric" : undefined}
        autocomplete="off"
        onChange={({ currentTarget }) => add(currentTarget)}
      />
      <datalist id="metric-names">
        {names.map((name) => (
          <option key={name} value={name} />
        ))}
      </datalist>
    </>
  );
}

/** The newest values of metrics. */
function MetricCells({ run, names }: { run: string; names: readonly string[] }) {
  const values = columnsOf(names)?.values[run];
  return (
    <>
      {names.map((name) => (
        <td key={name} class="right" data-label={name}>
          {short(values?.[name])}
        </td>
      ))}
    </>
  );
}

interface RunRowProps {
  run: RunSummary;
  /** Names of metrics. */
  columns: readonly string[];
  chosen: boolean;
  onToggle: () => void;
}

function RunRow({ run, columns, chosen, onToggle }: RunRowProps) {
  const {
    id,
    state,
    step,
    totalSteps,
    reward,
    rewards,
    validation,
    model,
    backend,
    episodes,
    updated,
    indexing,
    problem,
  } = run;
  return (
    <tr>
      <td>
        <input type="checkbox" checked={chosen} onChange={onToggle} aria-label={`compare ${id}`} />
      </td>
      <th scope="row">
        <a href={href(address(["runs", id]))} data-row>
          {printable(id)}
        </a>
        {problem && <small class="warning">{printable(problem)}</small>}
      </th>
      <td data-label="state">
        <StateBadge state={state} />
        {indexing !== undefined && <small class="muted"> reading {Math.round(indexing * 100)}%</small>}
      </td>
      <td class="right" data-label="step">
        {step}
        {totalSteps !== null && <span class="muted"> / {totalSteps}</span>}
      </td>
      <td class="curve" data-label="reward">
        {rewards.length === 0 ? (
          <span class="muted">–</span>
        ) : (
          <>
            <Sparkline values={rewards.map(toNumber)} label={`reward of ${id} by step`} />
            <Reward value={reward} />
          </>
        )}
      </td>
      <td data-label="validation">{validationText(validation)}</td>
      {columns.length > 0 && <MetricCells run={id} names={columns} />}
      <td class="clip" data-label="model" title={model ?? undefined}>
        {oneLine(model?.split("/").at(-1) ?? "–")} <small class="muted">{backend}</small>
      </td>
      <td class="right" data-label="episodes">
        {episodes.toLocaleString("en")}
      </td>
      <td data-label="updated" title={atTime(updated)}>
        {ago(updated, now.value)}
      </td>
    </tr>
  );
}

const validationText = (validation: RunSummary["validation"]) =>
  validation["val/reward"] === undefined ? <span class="muted">–</span> : short(validation["val/reward"]);

/** A small curve in a table. */
function Sparkline({ values, label }: { values: readonly (number | null)[]; label: string }) {
  const known = values.flatMap((value, index) => (value === null || !Number.isFinite(value) ? [] : [{ index, value }]));
  if (known.length < 2) return null;
  const low = Math.min(...known.map(({ value }) => value));
  const range = Math.max(...known.map(({ value }) => value)) - low || 1;
  const points = known.map(
    ({ index, value }) => `${(index / (values.length - 1)) * 96 + 2},${22 - ((value - low) / range) * 20}`,
  );
  return (
    <svg class="sparkline" viewBox="0 0 100 24" preserveAspectRatio="none" role="img" aria-label={label}>
      <polyline points={points.join(" ")} vector-effect="non-scaling-stroke" />
    </svg>
  );
}

/** All runs of the folder. */
import { useEffect, useState } from "preact/hooks";
import type { RunSummary } from "../../src/view/api.ts";
import { Empty, Link, Pending, Reward, StateBadge } from "../parts/basics.tsx";
import { Sparkline } from "../parts/chart.tsx";
import { ago, atTime, short, toNumber } from "../parts/numbers.ts";
import { oneLine, printable } from "../parts/printable.ts";
import { address, go, href, parameter, setParameters } from "../state/address.ts";
import { useAnswer } from "../state/fetch.ts";

export function Runs() {
  const { data, error } = useAnswer("/api/runs", {});
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
                <th scope="col">model</th>
                <th scope="col" class="right">
                  episodes
                </th>
                <th scope="col">updated</th>
              </tr>
            </thead>
            <tbody>
              {runs.map((run) => (
                <RunRow key={run.id} run={run} chosen={chosen.includes(run.id)} onToggle={() => toggle(run.id)} />
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

function RunRow({ run, chosen, onToggle }: { run: RunSummary; chosen: boolean; onToggle: () => void }) {
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
      <td>
        <StateBadge state={state} />
        {indexing !== undefined && <small class="muted"> reading {Math.round(indexing * 100)}%</small>}
      </td>
      <td class="right">
        {step}
        {totalSteps !== null && <span class="muted"> / {totalSteps}</span>}
      </td>
      <td class="curve">
        {rewards.length === 0 ? (
          <span class="muted">–</span>
        ) : (
          <>
            <Sparkline values={rewards.map(toNumber)} label={`reward of ${id} by step`} />
            <Reward value={reward} />
          </>
        )}
      </td>
      <td>{validationText(validation)}</td>
      <td class="clip" title={model ?? undefined}>
        {oneLine(model?.split("/").at(-1) ?? "–")} <small class="muted">{backend}</small>
      </td>
      <td class="right">{episodes.toLocaleString("en")}</td>
      <td title={atTime(updated)}>{ago(updated)}</td>
    </tr>
  );
}

const validationText = (validation: RunSummary["validation"]) =>
  validation["val/reward"] === undefined ? <span class="muted">–</span> : short(validation["val/reward"]);

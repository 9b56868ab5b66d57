/** One run: its state, its curves, and the details of one step. */
import { useMemo } from "preact/hooks";
import type { Curves } from "../../src/apps/view/queries/curves.ts";
import type { Note, RunDetail, StepSummary } from "../../src/apps/view/queries/run.ts";
import { Empty, Link, Pending, StepSlider, Text } from "../parts/basics.tsx";
import { Chart } from "../parts/chart.tsx";
import { ChartControls } from "../parts/chart-controls.tsx";
import { ago, atTime, count, duration, percent, short, toNumber } from "../parts/numbers.ts";
import { seriesColor } from "../parts/plot.ts";
import { printable } from "../parts/printable.ts";
import { address, embedded, parameter, setParameters } from "../state/address.ts";
import { axis } from "../state/chart-settings.ts";
import { now } from "../state/clock.ts";
import { useAnswer } from "../state/fetch.ts";
import { chosenStep } from "../state/place.ts";
import { changeSentence } from "./changes.ts";
import { knownAxes, type Places, placesOn, plannedCharts } from "./charts.ts";

export function Run({ run }: { run: string }) {
  const detail = useAnswer("/api/runs/:run", { run });
  const train = useAnswer("/api/runs/:run/curves", { run, kind: "train" });
  const validation = useAnswer("/api/runs/:run/curves", { run, kind: "validation" });
  const charts = useMemo(() => (train.data ? plannedCharts(train.data) : []), [train.data]);
  const more = parameter("curves").split(",").filter(Boolean);
  const added = useMemo(
    () =>
      more.map((name) => ({
        title: name,
        curves: [{ label: name, values: (train.data?.columns[name] ?? []).map(toNumber) }],
      })),
    [train.data, more.join(",")],
  );
  const chosenAxis = axis();
  const x = useMemo(() => train.data && placesOn(chosenAxis, train.data), [train.data, chosenAxis]);
  const validated = useMemo(
    () => validationChart(validation.data, x && { ...x, steps: train.data?.steps ?? [] }),
    [validation.data, train.data, x],
  );
  if (!detail.data) return <Pending error={detail.error} />;
  const steps = train.data?.steps ?? [];
  const step = chosenStep(steps);
  const pick = (chosen: number) => setParameters({ step: chosen, kind: null });
  const marks = detail.data.notes.flatMap(({ step, text }) => (step === null ? [] : [{ step, text }]));
  return (
    <>
      <RunHead run={detail.data} />
      {steps.length === 0 && !(detail.data.end && Object.keys(detail.data.validation).length > 0) && (
        <Empty>
          {detail.data.end === null ? `No step has ended so far. ${detail.data.doing ?? ""}` : "No step was completed."}
        </Empty>
      )}
      {steps.length > 0 && (
        <>
          <div class="sticky">
            <StepSlider steps={steps} step={step} onStep={pick} />
          </div>
          {train.data && <StepCard run={detail.data} curves={train.data} step={step} />}
          {train.data && <ChartControls steps={steps} known={knownAxes(train.data)} />}
          <div class="charts">
            {[...charts, ...added].map((chart) => (
              <Chart
                key={chart.title}
                {...chart}
                {...(x ? { x } : {})}
                steps={steps}
                step={step}
                onPick={pick}
                marks={marks}
              />
            ))}
            {validated && <Chart {...validated} step={undefined} sparse />}
          </div>
          <Metrics columns={train.data?.columns ?? {}} index={steps.indexOf(step)} step={step} shown={more} />
        </>
      )}
      <Notes notes={detail.data.notes} onPick={pick} />
      <RunEnd run={detail.data} />
    </>
  );
}

/** @param x the places of the training steps */
function validationChart(curves: Curves | undefined, x: (Places & { steps: readonly number[] }) | undefined) {
  if (!curves || curves.steps.length === 0) return undefined;
  const shown = curves.names.filter((name) => /\/(reward|pass@\d+)$/.test(name) || name === "val/reward");
  return {
    title: "Validation",
    steps: curves.steps,
    ...(x
      ? { x: { name: x.name, at: curves.steps.map((step) => x.at[x.steps.findLastIndex((one) => one <= step)] ?? 0) } }
      : {}),
    curves: shown
      .slice(0, 6)
      .map((name) => ({ label: name.replace("val/", ""), values: (curves.columns[name] ?? []).map(toNumber) })),
  };
}

function RunHead({ run }: { run: RunDetail }) {
  const { id, state, step, totalSteps, model, backend, episodes, started, updated, doing, text, path } = run;
  const validated = run.validation["val/reward"];
  const facts: [string, string, (string | undefined)?][] = [
    ["step", totalSteps === null ? String(step) : `${step} of ${totalSteps}`],
    // A run of `hone score` has only a validation.
    step === 0 && validated !== undefined ? ["validation reward", short(validated)] : ["reward", short(run.reward)],
    ["model", printable(model?.split("/").at(-1) ?? "–"), model ?? undefined],
    ["backend", backend ?? "–"],
    ["episodes", episodes.toLocaleString("en")],
    ["started", ago(started, now.value), atTime(started)],
    ["last record", ago(updated, now.value), atTime(updated)],
  ];
  return (
    <>
      <div class="head">
        <h1>{printable(id)}</h1>
        {doing && <span class="muted">{printable(doing)}</span>}
      </div>
      {totalSteps !== null && state === "live" && <progress value={step} max={totalSteps} aria-label="steps done" />}
      <dl class="facts">
        {facts.map(([name, value, title]) => (
          <div key={name} title={title}>
            <dt>{name}</dt>
            <dd>{value}</dd>
          </div>
        ))}
      </dl>
      <details class="about">
        <summary>About this run</summary>
        <p class="muted">{printable(path)}</p>
        {text.map((sentence) => (
          <p key={sentence}>{printable(sentence)}</p>
        ))}
      </details>
      {run.problem && <p class="warning">{printable(run.problem)}</p>}
    </>
  );
}

/** What changed at a step, where its time went, and links to its views. */
function StepCard({ run, curves, step }: { run: RunDetail; curves: Curves; step: number }) {
  const summary = run.steps.find((one) => one.step === step);
  const notes = run.notes.filter((note) => note.step === step);
  const change = changeSentence(curves, curves.steps.indexOf(step));
  return (
    <section class="card step-card" aria-label={`step ${step}`}>
      <div class="ways">
        <Link to={address(["runs", run.id, "groups"], { step })}>Groups</Link>
        <Link to={address(["runs", run.id, "anatomy"], { step })}>Anatomy</Link>
        {summary && summary.train > 0 && (
          <Link to={address(["runs", run.id, "episodes"], embedded ? {} : { filter: `step=${step} and kind=train` })}>
            {count(summary.train, "episode")}
          </Link>
        )}
        {summary && summary.validation > 0 && (
          <Link to={address(["runs", run.id, "groups"], { step, kind: "validation" })}>
            {count(summary.validation, "validation episode")}
          </Link>
        )}
        {summary?.seconds != null && <span class="muted">{duration(summary.seconds * 1000)}</span>}
      </div>
      {change && <p>{change}</p>}
      {summary && <Phases summary={summary} />}
      {notes.map((note) => (
        <p key={note.text} class={`note ${note.kind}`}>
          <Text>{note.text}</Text>
        </p>
      ))}
    </section>
  );
}

function Phases({ summary: { phases } }: { summary: StepSummary }) {
  const known = Object.entries(phases).flatMap(([name, value]) => {
    const seconds = toNumber(value);
    return seconds !== null && seconds > 0 ? [{ name: name.replaceAll("_", " "), seconds }] : [];
  });
  const total = known.reduce((sum, { seconds }) => sum + seconds, 0);
  if (total === 0) return null;
  return (
    <div class="phases">
      <div class="bar" aria-hidden="true">
        {known.map(({ name, seconds }, index) => (
          <i
            key={name}
            style={{ inlineSize: `${(seconds / total) * 100}%`, background: `var(${seriesColor(index)})` }}
            title={name}
          />
        ))}
      </div>
      <ul class="legend">
        {known
          .map(({ name, seconds }, index) => ({ name, seconds, index }))
          .filter(({ seconds }) => seconds / total >= 0.01)
          .map(({ name, seconds, index }) => (
            <li key={name}>
              <i class="swatch" style={{ background: `var(${seriesColor(index)})` }} />
              {name} <b>{duration(seconds * 1000)}</b> <span class="muted">{percent(seconds / total)}</span>
            </li>
          ))}
      </ul>
    </div>
  );
}

interface MetricsProps {
  columns: Record<string, Parameters<typeof toNumber>[0][]>;
  index: number;
  step: number;
  /** Metrics that always have a chart. */
  shown: readonly string[];
}

/** All metrics of the step. A click on a metric adds its curve. */
function Metrics({ columns, index, step, shown }: MetricsProps) {
  const search = parameter("metric").toLowerCase();
  const names = Object.keys(columns)
    .filter((name) => name.toLowerCase().includes(search))
    .sort();
  const toggle = (name: string) =>
    setParameters({
      curves: (shown.includes(name) ? shown.filter((one) => one !== name) : [...shown, name]).join(","),
    });
  return (
    <details class="card" open={search !== ""}>
      <summary>
        All {Object.keys(columns).length} metrics at step {step}
      </summary>
      <input
        type="search"
        placeholder="name of a metric"
        aria-label="search metrics"
        value={search}
        onInput={(event) => setParameters({ metric: event.currentTarget.value })}
      />
      <ul class="metrics">
        {names.map((name) => (
          <li key={name}>
            <label>
              <input type="checkbox" checked={shown.includes(name)} onChange={() => toggle(name)} />
              <span>{printable(name)}</span>
            </label>
            <b>{short(columns[name]?.[index])}</b>
          </li>
        ))}
      </ul>
    </details>
  );
}

function Notes({ notes, onPick }: { notes: readonly Note[]; onPick: (step: number) => void }) {
  if (notes.length === 0) return null;
  return (
    <section class="card">
      <h2>Health and warnings</h2>
      <ol class="notes">
        {notes.toReversed().map(({ kind, step, time, text }) => (
          <li key={`${time} ${text}`} class={`note ${kind}`}>
            {step === null ? (
              <span class="muted">start</span>
            ) : (
              <button type="button" class="link" onClick={() => onPick(step)}>
                step {step}
              </button>
            )}
            <Text>{text}</Text>
          </li>
        ))}
      </ol>
    </section>
  );
}

function RunEnd({ run: { end } }: { run: RunDetail }) {
  if (end === null || (end.report.length === 0 && !end.text)) return null;
  return (
    <section class="card">
      <h2>How it ended</h2>
      {end.text && <pre>{printable(end.text)}</pre>}
      {end.report.length > 0 && <pre>{printable(end.report.join("\n").trim())}</pre>}
    </section>
  );
}

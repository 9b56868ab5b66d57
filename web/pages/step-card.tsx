/** One step of a run: what changed, where its time went, and links to its views. */
import type { Curves, RunDetail, StepSummary } from "../../src/view/api.ts";
import { Link, Text } from "../parts/basics.tsx";
import { count, duration, percent, toNumber } from "../parts/numbers.ts";
import { seriesColor } from "../parts/plot.ts";
import { address } from "../state/address.ts";
import { embedded } from "../state/embedded.ts";
import { changeSentence } from "./changes.ts";

export function StepCard({ run, curves, step }: { run: RunDetail; curves: Curves; step: number }) {
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

/** How the time of a step was spent: one row per rollout. */
import type { Anatomy as AnatomyData, RolloutTimes, Span, SpanKind } from "../../src/apps/view/queries/anatomy.ts";
import { Empty, KindChoice, Link, Pending, Reward, StepSlider } from "../parts/basics.tsx";
import { duration, percent, short } from "../parts/numbers.ts";
import { printable } from "../parts/printable.ts";
import { VirtualList } from "../parts/virtual.tsx";
import { address, href, parameter, setParameters } from "../state/address.ts";
import { useAnswer } from "../state/fetch.ts";
import { chosenStep, shownKind } from "../state/place.ts";

const kinds: Readonly<Record<SpanKind, string>> = {
  model: "model",
  sample_queue: "sample queue",
  tool: "tool",
  environment: "environment",
  grader: "grader",
  set_up: "set-up",
  agent: "agent's own code",
  queued: "queued",
};

export function Anatomy({ run }: { run: string }) {
  const detail = useAnswer("/api/runs/:run", { run });
  const kind = shownKind();
  const steps = (detail.data?.steps ?? [])
    .filter((step) => kind === "train" || step.validation > 0)
    .map(({ step }) => step);
  // The current step can be shown, too.
  const running = detail.data?.state === "live" && kind === "train" ? (steps.at(-1) ?? 0) + 1 : undefined;
  const offered = running === undefined ? steps : [...steps, running];
  const step = parameter("step") === "" ? (steps.at(-1) ?? running ?? 0) : chosenStep(offered);
  if (!detail.data) return <Pending error={detail.error} />;
  return (
    <>
      <div class="head">
        <h1>Anatomy of a step</h1>
        <KindChoice kind={kind} />
      </div>
      <div class="sticky">
        <StepSlider steps={offered} step={step} onStep={(step) => setParameters({ step })} />
      </div>
      {step === 0 ? <Empty>No step so far.</Empty> : <Timeline run={run} step={step} kind={kind} />}
    </>
  );
}

function Timeline({ run, step, kind }: { run: string; step: number; kind: "train" | "validation" }) {
  const { data, error, stale } = useAnswer("/api/runs/:run/anatomy", { run, step: String(step), kind });
  if (!data) return <Pending error={error} />;
  if (data.rollouts.length === 0)
    return <Empty>The journal has no rollouts of this step. Runs of earlier versions have no journal.</Empty>;
  const total = Math.max(1, data.end);
  const versions = data.rollouts.flatMap(({ spans }) => spans.flatMap((span) => span.versions ?? []));
  const oldest = Math.min(...versions);
  const newest = Math.max(...versions);
  const slow = new Map(data.slowest.map(({ rollout, mostly }) => [rollout, mostly]));
  return (
    <div class={stale ? "stack stale" : "stack"}>
      <Summary data={data} run={run} />
      <div class="timeline">
        <Phases data={data} total={total} />
        <VirtualList count={data.rollouts.length} estimate={() => 24} class="timeline-rows">
          {(index) => (
            <RolloutRow
              rollout={data.rollouts[index]!}
              first={data.rollouts[index - 1]?.task !== data.rollouts[index]?.task}
              run={run}
              total={total}
              shade={(version) => (newest === oldest ? 1 : 0.35 + (0.65 * (version - oldest)) / (newest - oldest))}
              slow={slow.get(index)}
            />
          )}
        </VirtualList>
        {data.weights
          .filter(({ at }) => at >= 0 && at <= total)
          .map(({ version, at }) => (
            <i key={version} class="weights" style={{ "--at": at / total }} title={`weights of version ${version}`}>
              v{version}
            </i>
          ))}
      </div>
    </div>
  );
}

function Summary({ data, run }: { data: AnatomyData; run: string }) {
  const spent = (Object.keys(kinds) as SpanKind[])
    .map((kind) => ({ kind, time: data.totals[kind] ?? 0 }))
    .filter(({ time }) => time > 0);
  const sum = spent.reduce((total, { time }) => total + time, 0);
  return (
    <section class="card">
      <div class="bar" aria-hidden="true">
        {spent.map(({ kind, time }) => (
          <i key={kind} class={`span ${kind}`} style={{ inlineSize: `${(time / sum) * 100}%` }} />
        ))}
      </div>
      <ul class="legend" aria-label="time of all rollouts">
        {spent.map(({ kind, time }) => (
          <li key={kind}>
            <i class={`swatch span ${kind}`} />
            {kinds[kind]} <b>{duration(time)}</b> <span class="muted">{percent(time / sum)}</span>
          </li>
        ))}
      </ul>
      {data.slowest.length > 0 && (
        <p class="slowest">
          Slowest:{" "}
          {data.slowest.slice(0, 3).map(({ rollout, milliseconds, mostly }, index) => (
            <span key={rollout}>
              {index > 0 && ", "}
              <RolloutLink rollout={data.rollouts[rollout]} run={run} /> {duration(milliseconds)}, mostly{" "}
              {kinds[mostly]}
            </span>
          ))}
        </p>
      )}
    </section>
  );
}

const nameOf = ({ task, rollout }: RolloutTimes) => `${task}:${rollout}`;

function RolloutLink({ rollout, run }: { rollout: RolloutTimes | undefined; run: string }) {
  if (!rollout) return null;
  const name = printable(nameOf(rollout));
  return rollout.episode === null ? (
    <b>{name}</b>
  ) : (
    <Link to={address(["runs", run, "episodes", rollout.episode])}>{name}</Link>
  );
}

/** The phases of the trainer in the same time. */
function Phases({ data, total }: { data: AnatomyData; total: number }) {
  return (
    <div class="timeline-row">
      <span class="timeline-name muted">
        <bdi>trainer</bdi>
      </span>
      <div class="track">
        {data.phases.map(({ name, start, end }) => (
          <i
            key={`${name} ${start}`}
            class="phase"
            style={placed(start, end ?? total, total)}
            title={`${name}: ${duration((end ?? total) - start)}`}
          >
            {name.replaceAll("_", " ")}
          </i>
        ))}
      </div>
      <small class="muted">{duration(total)}</small>
    </div>
  );
}

/** The part within the step: phases and rollouts of asynchronous training begin before it and end after it. */
function placed(start: number, end: number, total: number) {
  const [from, to] = [start, end].map((time) => Math.max(0, Math.min(total, time)) / total) as [number, number];
  return { insetInlineStart: `${from * 100}%`, inlineSize: `max(1px, ${(to - from) * 100}%)` };
}

interface RolloutRowProps {
  rollout: RolloutTimes;
  /** Whether it is the first row of its task. */
  first: boolean;
  run: string;
  total: number;
  shade: (version: number) => number;
  slow: SpanKind | undefined;
}

function RolloutRow({ rollout, first, run, total, shade, slow }: RolloutRowProps) {
  const name = nameOf(rollout);
  const label = `${name}: ${duration((rollout.end ?? total) - rollout.start)}${rollout.retries > 0 ? `, ${rollout.retries} failed attempts` : ""}${rollout.ended === "failed" ? ", failed" : ""}`;
  const open = rollout.episode === null ? undefined : address(["runs", run, "episodes", rollout.episode]);
  return (
    <div
      class={`timeline-row${first ? " first" : ""}${slow ? " slow" : ""}${rollout.ended === "failed" ? " failed" : ""}`}
    >
      <span class="timeline-name" title={label}>
        {open ? (
          <a href={href(open)} data-row>
            {printable(name)}
          </a>
        ) : (
          <bdi>{printable(name)}</bdi>
        )}
      </span>
      <div class="track" role="img" aria-label={label}>
        {rollout.spans.map((span) => (
          <i
            key={`${span.kind} ${span.start} ${span.call ?? ""}`}
            class={`span ${span.kind}${span.failed ? " failed" : ""}`}
            style={{
              ...placed(span.start, span.end ?? total, total),
              ...(span.versions ? { "--shade": shade(span.versions[1]) } : {}),
            }}
            title={spanText(span, total)}
          />
        ))}
      </div>
      <Reward value={rollout.reward} />
    </div>
  );
}

function spanText(span: Span, total: number): string {
  const { kind, stage, role, prompt, tokens, versions, attempt, failed } = span;
  const parts = [
    `${stage ?? kinds[kind]}${role ? ` (${role})` : ""}: ${duration((span.end ?? total) - span.start)}`,
    prompt === undefined ? "" : `${short(prompt)} tokens of prompt`,
    tokens === undefined ? "" : `${short(tokens)} sampled`,
    versions ? `version ${versions[0] === versions[1] ? versions[0] : versions.join(" to ")}` : "",
    attempt > 0 ? `attempt ${attempt + 1}` : "",
    failed ? "failed" : "",
  ];
  return printable(parts.filter(Boolean).join(", "));
}

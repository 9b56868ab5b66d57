/** How the time of a step was spent: one lane per rollout. */
import type { Anatomy as AnatomyData, Lane, Span, SpanKind } from "../../src/view/api.ts";
import { Empty, KindChoice, Link, Pending, Reward, StepSlider } from "../parts/basics.tsx";
import { duration, percent, short } from "../parts/numbers.ts";
import { printable } from "../parts/printable.ts";
import { VirtualList } from "../parts/virtual.tsx";
import { address, href, parameter, setParameters } from "../state/address.ts";
import { useAnswer } from "../state/fetch.ts";
import { chosenStep } from "../state/place.ts";

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
  const kind = parameter("kind") === "validation" ? "validation" : "train";
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
      {step === 0 ? <Empty>No step so far.</Empty> : <Lanes run={run} step={step} kind={kind} />}
    </>
  );
}

function Lanes({ run, step, kind }: { run: string; step: number; kind: "train" | "validation" }) {
  const { data, error, stale } = useAnswer("/api/runs/:run/anatomy", { run, step: String(step), kind });
  if (!data) return <Pending error={error} />;
  if (data.lanes.length === 0)
    return <Empty>The journal has no rollouts of this step. Runs of earlier versions have no journal.</Empty>;
  const total = Math.max(1, data.end);
  const versions = data.lanes.flatMap(({ spans }) => spans.flatMap((span) => span.versions ?? []));
  const oldest = Math.min(...versions);
  const newest = Math.max(...versions);
  const slow = new Map(data.slowest.map(({ lane, mostly }) => [lane, mostly]));
  return (
    <div class={stale ? "stack stale" : "stack"}>
      <Summary data={data} run={run} />
      <div class="lanes">
        <Phases data={data} total={total} />
        <VirtualList count={data.lanes.length} estimate={() => 24} class="lane-list">
          {(index) => (
            <LaneRow
              lane={data.lanes[index]!}
              first={data.lanes[index - 1]?.task !== data.lanes[index]?.task}
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
          {data.slowest.slice(0, 3).map(({ lane, milliseconds, mostly }, index) => (
            <span key={lane}>
              {index > 0 && ", "}
              <LaneLink lane={data.lanes[lane]} run={run} /> {duration(milliseconds)}, mostly {kinds[mostly]}
            </span>
          ))}
        </p>
      )}
    </section>
  );
}

const laneName = ({ task, rollout }: Lane) => `${task}:${rollout}`;

function LaneLink({ lane, run }: { lane: Lane | undefined; run: string }) {
  if (!lane) return null;
  const name = printable(laneName(lane));
  return lane.episode === null ? (
    <b>{name}</b>
  ) : (
    <Link to={address(["runs", run, "episodes", lane.episode])}>{name}</Link>
  );
}

/** The phases of the trainer in the same time. */
function Phases({ data, total }: { data: AnatomyData; total: number }) {
  return (
    <div class="lane phases-lane">
      <span class="lane-name muted">
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

interface LaneRowProps {
  lane: Lane;
  /** Of its task. */
  first: boolean;
  run: string;
  total: number;
  shade: (version: number) => number;
  slow: SpanKind | undefined;
}

function LaneRow({ lane, first, run, total, shade, slow }: LaneRowProps) {
  const name = laneName(lane);
  const label = `${name}: ${duration((lane.end ?? total) - lane.start)}${lane.retries > 0 ? `, ${lane.retries} failed attempts` : ""}${lane.ended === "failed" ? ", failed" : ""}`;
  const open = lane.episode === null ? undefined : address(["runs", run, "episodes", lane.episode]);
  return (
    <div class={`lane${first ? " first" : ""}${slow ? " slow" : ""}${lane.ended === "failed" ? " failed" : ""}`}>
      <span class="lane-name" title={label}>
        {open ? (
          <a href={href(open)} data-row>
            {printable(name)}
          </a>
        ) : (
          <bdi>{printable(name)}</bdi>
        )}
      </span>
      <div class="track" role="img" aria-label={label}>
        {lane.spans.map((span) => (
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
      <Reward value={lane.reward} />
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

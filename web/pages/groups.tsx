/** The groups of a step: the rollouts of one task and role, which are compared with each other. */
import type { GroupSummary } from "../../src/apps/view/queries/episode.ts";
import { Empty, KindChoice, Pending, StepSlider } from "../parts/basics.tsx";
import { count, short, toNumber } from "../parts/numbers.ts";
import { oneLine } from "../parts/printable.ts";
import { address, href, setParameters } from "../state/address.ts";
import { useAnswer } from "../state/fetch.ts";
import { chosenStep, shownKind } from "../state/place.ts";

export function Groups({ run }: { run: string }) {
  const detail = useAnswer("/api/runs/:run", { run });
  const kind = shownKind();
  const steps = (detail.data?.steps ?? []).filter((step) => step[kind] > 0).map(({ step }) => step);
  const step = chosenStep(steps);
  if (!detail.data) return <Pending error={detail.error} />;
  return (
    <>
      <div class="head">
        <h1>Groups</h1>
        <KindChoice kind={kind} />
      </div>
      {steps.length === 0 ? (
        <Empty>No {kind === "train" ? "training" : "validation"} episodes are stored so far.</Empty>
      ) : (
        <>
          <div class="sticky">
            <StepSlider steps={steps} step={step} onStep={(step) => setParameters({ step })} />
          </div>
          <GroupTable run={run} step={step} kind={kind} />
        </>
      )}
    </>
  );
}

function GroupTable({ run, step, kind }: { run: string; step: number; kind: "train" | "validation" }) {
  const { data, error, stale } = useAnswer("/api/runs/:run/groups", { run, step: String(step), kind });
  if (!data) return <Pending error={error} />;
  const silent = data.groups.filter(({ zeroSignal }) => zeroSignal !== null).length;
  const several = new Set(data.groups.map(({ role }) => role)).size > 1;
  return (
    <>
      <p class="muted">
        {count(data.groups.length, "group")}
        {silent > 0 && `, ${silent} without a signal`}
      </p>
      <div class={stale ? "scroll stale" : "scroll"}>
        <table class="rows">
          <thead>
            <tr>
              <th scope="col">task</th>
              {several && <th scope="col">role</th>}
              <th scope="col">rewards</th>
              <th scope="col" class="right minor">
                mean
              </th>
              <th scope="col" class="right minor">
                deviation
              </th>
              <th scope="col">signal</th>
            </tr>
          </thead>
          <tbody>
            {data.groups.map((group) => (
              <GroupRow key={`${group.task} ${group.role}`} run={run} group={group} several={several} />
            ))}
          </tbody>
        </table>
      </div>
    </>
  );
}

function GroupRow({ run, group, several }: { run: string; group: GroupSummary; several: boolean }) {
  const { step, kind, task, role, rewards, mean, deviation, zeroSignal } = group;
  const open = address(["runs", run, "group"], { step, kind: kind === "train" ? null : kind, task });
  return (
    <tr class={zeroSignal === null ? undefined : "silent"}>
      <th scope="row">
        <a href={href(open)} data-row>
          {oneLine(task)}
        </a>
      </th>
      {several && <td>{oneLine(role)}</td>}
      <td>
        <RewardDots rewards={rewards.map(toNumber)} />
      </td>
      <td class="right minor">{short(mean)}</td>
      <td class="right minor">{short(deviation)}</td>
      <td>{zeroSignal !== null && <ZeroSignal reason={zeroSignal} />}</td>
    </tr>
  );
}

export const ZeroSignal = ({ reason }: { reason: string }) => (
  <span class="zero-signal">
    <span class="badge">zero signal</span> {oneLine(reason)}
  </span>
);

/** One column for each rollout; unknown rewards are hollow. */
function RewardDots({ rewards }: { rewards: readonly (number | null)[] }) {
  const known = rewards.filter((reward) => reward !== null);
  const top = Math.max(1, ...known);
  const low = Math.min(0, ...known);
  const text = rewards.map((reward) => (reward === null ? "unknown" : short(reward))).join(", ");
  return (
    <span class="dots" role="img" aria-label={`rewards ${text}`} title={text}>
      {rewards.map((reward, index) => (
        <i
          key={index}
          class={reward === null ? "unknown" : undefined}
          style={{ blockSize: reward === null ? "100%" : `${Math.max(8, ((reward - low) / (top - low)) * 100)}%` }}
        />
      ))}
    </span>
  );
}

/** The rollouts of one task in one step, side by side. */
import type { Group as GroupData, GroupMember } from "../../src/apps/view/queries/episode.ts";
import { Advantage, Choice, Link, Pending, Reward, StepSlider, Text } from "../parts/basics.tsx";
import { DiffView } from "../parts/diff-view.tsx";
import { count, duration, short } from "../parts/numbers.ts";
import { oneLine, printable } from "../parts/printable.ts";
import { address, href, parameter, setParameters } from "../state/address.ts";
import { useAnswer } from "../state/fetch.ts";
import { shownKind } from "../state/place.ts";
import { ZeroSignal } from "./groups.tsx";

export function Group({ run }: { run: string }) {
  const kind = shownKind();
  const task = parameter("task");
  const { data, error, stale } = useAnswer("/api/runs/:run/group", { run, step: parameter("step"), task, kind });
  if (!data) return <Pending error={error} />;
  const base = data.members.find(({ key }) => key === parameter("base"));
  return (
    <>
      <div class="head">
        <h1>
          <Text>{oneLine(task)}</Text>
        </h1>
        <span class="muted">
          step {data.step}, {count(data.members.length, kind === "train" ? "rollout" : "validation rollout")}
        </span>
        <Link class="button" to={address(["runs", run, "task"], { task, kind: kind === "train" ? null : kind })}>
          Same task across steps
        </Link>
      </div>
      {data.steps.length > 1 && (
        <div class="sticky">
          <StepSlider
            steps={data.steps}
            step={data.step}
            onStep={(step) => setParameters({ step, base: null })}
            label="step"
          />
        </div>
      )}
      <GroupHead data={data} />
      <Choice
        label="difference from"
        value={base?.key ?? ""}
        options={[
          { value: "", label: "replies" },
          ...data.members.map((member) => ({ value: member.key, label: `difference from ${member.rollout}` })),
        ]}
        onChange={(key) => setParameters({ base: key })}
      />
      <div class={stale ? "members stale" : "members"}>
        {data.members.map((member) => (
          <Member key={member.key} run={run} member={member} base={base} />
        ))}
      </div>
    </>
  );
}

function GroupHead({ data }: { data: GroupData }) {
  return (
    <section class="card">
      {data.row !== null && data.row !== undefined && (
        <details open>
          <summary>Task</summary>
          <pre>{printable(JSON.stringify(data.row, null, 2))}</pre>
        </details>
      )}
      <ul class="group-facts">
        {data.groups.map(({ role, mean, deviation, size, zeroSignal }) => (
          <li key={role}>
            <b>{oneLine(role)}</b> mean {short(mean)}, deviation {short(deviation)}, {count(size, "reward")}{" "}
            {zeroSignal !== null && <ZeroSignal reason={zeroSignal} />}
          </li>
        ))}
      </ul>
    </section>
  );
}

function Member({ run, member, base }: { run: string; member: GroupMember; base: GroupMember | undefined }) {
  const { key, rollout, trajectories, termination, tokens, turns, seconds, failure, explanation, replies } = member;
  return (
    <article class="card member" aria-label={`rollout ${rollout}`}>
      <header>
        <h2>
          <a href={href(address(["runs", run, "episodes", key]))} data-row>
            rollout {rollout}
          </a>
        </h2>
        <span class="badge">{oneLine(termination.replaceAll("_", " "))}</span>
      </header>
      <p class="muted">
        {count(tokens, "token")}, {count(turns, "turn")}, {duration(seconds * 1000)}
      </p>
      {failure && (
        <p class="note failure">
          {failure.boundary}: {printable(failure.message)}
        </p>
      )}
      {trajectories.map((trajectory, index) => (
        <section key={`${trajectory.role} ${trajectory.instance ?? ""}`}>
          <div class="verdict">
            <span>
              {oneLine(trajectory.role)}
              {trajectory.instance === undefined ? "" : ` ${trajectory.instance}`}
            </span>
            <Reward value={trajectory.reward} />
            <span class="muted">advantage</span> <Advantage value={trajectory.advantage} />
          </div>
          {base && base !== member ? (
            <DiffView before={base.replies[index] ?? ""} after={replies[index] ?? ""} />
          ) : (
            <div class="text reply" dir="auto">
              {replies[index] ? printable(replies[index]) : <span class="muted">no reply</span>}
            </div>
          )}
        </section>
      ))}
      {explanation && (
        <p class="explanation">
          <span class="muted">grader:</span> <Text>{explanation}</Text>
        </p>
      )}
    </article>
  );
}

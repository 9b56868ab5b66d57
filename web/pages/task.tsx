/** The same task at two steps of a run, with a comparison of the replies. */
import type { Episode, TaskHistory } from "../../src/apps/view/queries/episode.ts";
import type { EpisodeRow } from "../../src/apps/view/queries/episodes.ts";
import { Advantage, Choice, Empty, Link, Pending, Reward, StepSlider, Text } from "../parts/basics.tsx";
import { Chart } from "../parts/chart.tsx";
import { DiffView, TokenDiff, type Tokens } from "../parts/diff-view.tsx";
import { toNumber } from "../parts/numbers.ts";
import { oneLine, printable } from "../parts/printable.ts";
import { address, parameter, setParameters } from "../state/address.ts";
import { useAnswer } from "../state/fetch.ts";
import { shownKind } from "../state/place.ts";

export function Task({ run }: { run: string }) {
  const kind = shownKind();
  const task = parameter("task");
  const { data, error } = useAnswer("/api/runs/:run/task", { run, task, kind });
  if (!data) return <Pending error={error} />;
  const rows = data.steps.flatMap(({ episodes }) => episodes);
  const first = rows[0];
  if (first === undefined) return <Empty>No episode of this task is stored.</Empty>;
  const of = (name: string, otherwise: EpisodeRow) => rows.find(({ key }) => key === parameter(name)) ?? otherwise;
  const left = of("a", first);
  const right = of("b", data.steps.at(-1)?.episodes.find(({ rollout }) => rollout === left.rollout) ?? rows.at(-1)!);
  return (
    <>
      <div class="head">
        <h1>
          <Text>{oneLine(task)}</Text>
        </h1>
        <span class="muted">across steps</span>
      </div>
      {data.row !== null && data.row !== undefined && (
        <pre class="card">{printable(JSON.stringify(data.row, null, 2))}</pre>
      )}
      {data.steps.length === 1 && (
        <p class="muted">The task occurs in one step only, so its rollouts are compared with each other.</p>
      )}
      {data.steps.length > 1 && (
        <Chart
          title="Mean reward of this task"
          steps={data.steps.map(({ step }) => step)}
          curves={[{ label: "mean reward", values: data.steps.map(({ mean }) => toNumber(mean)) }]}
          step={right.step}
          onPick={(step) => setParameters({ b: data.steps.find((one) => one.step === step)?.episodes[0]?.key })}
        />
      )}
      <div class="sides">
        <Side run={run} history={data} name="a" label="before" row={left} keys={false} />
        <Side run={run} history={data} name="b" label="after" row={right} keys />
      </div>
      <Difference run={run} left={left.key} right={right.key} />
    </>
  );
}

interface SideProps {
  run: string;
  history: TaskHistory;
  /** The name of its parameter in the address. */
  name: string;
  label: string;
  row: EpisodeRow;
  /** Answers [ and ]. */
  keys: boolean;
}

function Side({ run, history, name, label, row, keys }: SideProps) {
  const here = history.steps.find(({ step }) => step === row.step);
  const toStep = (step: number) => {
    const there = history.steps.find((one) => one.step === step)?.episodes ?? [];
    setParameters({ [name]: (there.find(({ rollout }) => rollout === row.rollout) ?? there[0])?.key });
  };
  return (
    <section class="card" aria-label={label}>
      {history.steps.length > 1 && (
        <StepSlider steps={history.steps.map(({ step }) => step)} step={row.step} onStep={toStep} keys={keys} />
      )}
      {here !== undefined && here.episodes.length > 1 && (
        <Choice
          label={`rollout ${label}`}
          value={row.key}
          options={here.episodes.map(({ key, rollout }) => ({ value: key, label: `rollout ${rollout}` }))}
          onChange={(key) => setParameters({ [name]: key })}
        />
      )}
      <p class="verdict">
        <Link to={address(["runs", run, "episodes", row.key])}>
          {label}: step {row.step}, rollout {row.rollout}
        </Link>
        <Reward value={row.reward} /> <Advantage value={row.advantage} />
      </p>
    </section>
  );
}

function Difference({ run, left, right }: { run: string; left: string; right: string }) {
  const before = useAnswer("/api/runs/:run/episodes/:episode", { run, episode: left });
  const after = useAnswer("/api/runs/:run/episodes/:episode", { run, episode: right });
  if (!before.data || !after.data) return <Pending error={before.error ?? after.error} />;
  const byTokens = parameter("diff") === "tokens";
  const [old, now] = [before.data, after.data];
  return (
    <>
      <Choice
        label="difference"
        value={byTokens ? "tokens" : "text"}
        options={[
          { value: "text", label: "words" },
          { value: "tokens", label: "token ids" },
        ]}
        onChange={(diff) => setParameters({ diff: diff === "text" ? null : diff })}
      />
      {now.detail.map((trajectory, index) => (
        <section class="card" key={`${trajectory.role} ${trajectory.instance ?? ""}`}>
          {now.detail.length > 1 && <h2>{oneLine(trajectory.role)}</h2>}
          {trajectory.turnList.map((turn, place) => {
            const earlier = old.detail[index]?.turnList[place];
            const key = `${place}`;
            if (byTokens) return <TokenDiff key={key} before={earlier?.sampled ?? noTokens} after={turn.sampled} />;
            return <DiffView key={key} before={earlier?.reply.text ?? ""} after={turn.reply.text} />;
          })}
          {missing(old, index, trajectory.turnList.length) > 0 && (
            <p class="muted">The episode before has {missing(old, index, trajectory.turnList.length)} more turns.</p>
          )}
        </section>
      ))}
    </>
  );
}

const noTokens: Tokens = { ids: [] };

const missing = (old: Episode, trajectory: number, turns: number) =>
  (old.detail[trajectory]?.turnList.length ?? 0) - turns;

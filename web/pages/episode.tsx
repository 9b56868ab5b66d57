/** One episode: its turns, with every sampled token colored. */
import { useEffect, useMemo, useState } from "preact/hooks";
import type { Episode as EpisodeData } from "../../src/view/api.ts";
import { Advantage, Choice, Link, Pending, Reward, Text } from "../parts/basics.tsx";
import { count, duration, short } from "../parts/numbers.ts";
import { oneLine, printable } from "../parts/printable.ts";
import { VirtualList } from "../parts/virtual.tsx";
import { address, go, parameter, setParameters } from "../state/address.ts";
import { useAnswer } from "../state/fetch.ts";
import { useKeys } from "../state/keys.ts";
import { BlockView } from "../tokens/block-view.tsx";
import { type Block, blocksOf } from "../tokens/blocks.ts";
import {
  type Coloring,
  type ColoringName,
  coloringNames,
  colorings,
  type Range,
  rangeOf,
} from "../tokens/colorings.ts";
import { FindBox, useFind } from "../tokens/find-box.tsx";
import { currentToken, PromptBlock, SampledBlock } from "../tokens/token-block.tsx";
import { Legend, TokenNumbers } from "../tokens/token-numbers.tsx";
import { addressOfToken, contains, placeOf } from "../tokens/token-place.ts";

export function Episode({ run, episode }: { run: string; episode: string }) {
  const { data, error } = useAnswer("/api/runs/:run/episodes/:episode", { run, episode });
  const open = (key: string | null) =>
    key !== null &&
    go(address(["runs", run, "episodes", key], { color: parameter("color"), tokens: parameter("tokens") }));
  useKeys({ "[": () => open(data?.previous ?? null), "]": () => open(data?.next ?? null) });
  if (!data) return <Pending error={error} />;
  return (
    <>
      <EpisodeHead run={run} episode={data} />
      <Transcript episode={data} />
    </>
  );
}

function EpisodeHead({ run, episode }: { run: string; episode: EpisodeData }) {
  const {
    id,
    key,
    step,
    kind,
    task,
    termination,
    correct,
    seconds,
    retries,
    tokens,
    turns,
    versions,
    failure,
    explanation,
    previous,
    next,
  } = episode;
  const validation = kind === "train" ? null : kind;
  const at = (key: string) =>
    address(["runs", run, "episodes", key], { color: parameter("color"), tokens: parameter("tokens") });
  return (
    <>
      <div class="head">
        <h1>
          <Text>{oneLine(id)}</Text>
        </h1>
        <span class="muted">
          {kind === "train" ? "step" : "validation after step"} {step}
        </span>
        <nav class="ways" aria-label="related">
          {previous !== null && (
            <Link to={at(previous)} title="[">
              ‹ previous
            </Link>
          )}
          {next !== null && (
            <Link to={at(next)} title="]">
              next ›
            </Link>
          )}
          <Link to={address(["runs", run, "group"], { step, kind: validation, task })}>Group</Link>
          <Link to={address(["runs", run, "task"], { task, kind: validation, b: key })}>Across steps</Link>
        </nav>
      </div>
      <dl class="facts">
        {episode.detail.map(({ role, instance, reward, scores, advantage }) => (
          <div key={`${role} ${instance ?? ""}`}>
            <dt>
              {oneLine(role)} {instance ?? ""}
            </dt>
            <dd class="verdict">
              <Reward value={reward} /> {advantage !== null && <Advantage value={advantage} />}
              {Object.entries(scores).map(([name, score]) => (
                <span key={name} class="muted">
                  {oneLine(name)} {short(score)}
                </span>
              ))}
            </dd>
          </div>
        ))}
        {correct !== null && <Fact name="solved" value={correct ? "yes" : "no"} />}
        <Fact name="ended by" value={oneLine(termination.replaceAll("_", " "))} />
        <Fact name="sampled" value={`${count(tokens, "token")} in ${count(turns, "turn")}`} />
        <Fact name="time" value={duration(seconds * 1000)} />
        {versions && (
          <Fact
            name="weights"
            value={versions[0] === versions[1] ? `version ${versions[0]}` : `versions ${versions.join(" to ")}`}
          />
        )}
        {retries > 0 && <Fact name="failed attempts" value={String(retries)} />}
        {Object.entries(episode.metrics).map(([name, value]) => (
          <Fact key={name} name={oneLine(name)} value={short(value)} />
        ))}
      </dl>
      {failure && (
        <p class="note failure">
          <b>{failure.boundary}</b> {printable(failure.message)}
        </p>
      )}
      {episode.stack && (
        <details>
          <summary>Stack</summary>
          <pre>{printable(episode.stack)}</pre>
        </details>
      )}
      {episode.retriedAfter.map(({ boundary, message }, index) => (
        <p key={`${index} ${message}`} class="note warning">
          attempt {index + 1} failed: {boundary}: {printable(message)}
        </p>
      ))}
      {explanation && (
        <p class="explanation">
          <span class="muted">grader:</span> <Text>{explanation}</Text>
        </p>
      )}
      {episode.row !== null && episode.row !== undefined && (
        <details class="about">
          <summary>Task</summary>
          <pre>{printable(JSON.stringify(episode.row, null, 2))}</pre>
        </details>
      )}
    </>
  );
}

const Fact = ({ name, value }: { name: string; value: string }) => (
  <div>
    <dt>{name}</dt>
    <dd>{value}</dd>
  </div>
);

const textForms = [
  { value: "", label: "text", title: "messages and replies" },
  { value: "exact", label: "exact prompt", title: "the prompt as the model saw it" },
  { value: "ids", label: "token ids", title: "each token with its id" },
] as const;

function Transcript({ episode }: { episode: EpisodeData }) {
  const ranges = useMemo(
    () => new Map(coloringNames.map((name) => [name, rangeOf(colorings[name], episode)])),
    [episode],
  );
  const asked = parameter("color");
  const name: ColoringName = coloringNames.find((one) => one === asked) ?? "advantage";
  const range = ranges.get(name) ?? null;
  const tokens = parameter("tokens");
  const blocks = useMemo(() => blocksOf(episode, tokens !== ""), [episode, tokens !== ""]);
  useKeys({
    c: () => {
      const known = coloringNames.filter((one) => ranges.get(one));
      setParameters({ color: known[(known.indexOf(name) + 1) % known.length] });
    },
  });
  const find = useFind(blocks);
  const at = parameter("at");
  const linked = useMemo(() => blocks.findIndex((block) => contains(block, placeOf(at))), [blocks, at]);
  const [target, setTarget] = useState<number>();
  useEffect(() => {
    // After a click on a token, the address changes but the token is already in view.
    if (linked >= 0 && addressOfToken(currentToken.peek()) === at) return;
    currentToken.value = linked < 0 ? null : placeOf(at);
    setTarget(linked < 0 ? undefined : linked);
  }, [linked, at]);
  return (
    <>
      <div class="sticky coloring">
        <div class="controls">
          <FindBox {...find} />
          <Choice
            label="color of tokens"
            value={name}
            options={coloringNames.map((one) => ({
              value: one,
              label: colorings[one].label,
              title: ranges.get(one) ? colorings[one].about : "not recorded for this episode",
              disabled: !ranges.get(one),
            }))}
            onChange={(color) => setParameters({ color })}
          />
          <Choice
            label="form"
            value={tokens}
            options={textForms}
            onChange={(form) => setParameters({ tokens: form })}
          />
        </div>
        <Legend coloring={colorings[name]} range={range} />
      </div>
      <VirtualList
        count={blocks.length}
        estimate={(index) => heightOf(blocks[index]!)}
        class="transcript"
        overscan={2}
        shown={find.block ?? target}
      >
        {(index) => <Shown block={blocks[index]!} coloring={colorings[name]} range={range} ids={tokens === "ids"} />}
      </VirtualList>
      <TokenNumbers episode={episode} shown={colorings[name]} />
    </>
  );
}

interface ShownProps {
  block: Block;
  coloring: Coloring;
  range: Range | null;
  ids: boolean;
}

function Shown({ block, coloring, range, ids }: ShownProps) {
  if (block.kind === "sampled")
    return <SampledBlock {...block} prompt={false} coloring={coloring} range={range} ids={ids} />;
  if (block.kind === "prompt") return <PromptBlock {...block} prompt ids={ids} />;
  return <BlockView block={block} />;
}

/** An estimate, used until the height is measured. */
function heightOf(block: Block): number {
  if (block.kind === "sampled" || block.kind === "prompt") return 24 + ((block.to - block.from) / 18) * 24;
  if (block.kind === "message" || block.kind === "reply") return 40 + (block.text.length / 90) * 22;
  return 44;
}

/** One episode: its turns, with every sampled token colored. */
import { useEffect, useMemo, useState } from "preact/hooks";
import type { Episode as EpisodeData } from "../../src/apps/view/queries/episode.ts";
import { boundsOf, type ColoringName, coloringNames } from "../../src/apps/view/token-scale.ts";
import { Advantage, Choice, Link, Pending, Reward, Text } from "../parts/basics.tsx";
import { count, duration, short } from "../parts/numbers.ts";
import { oneLine, printable } from "../parts/printable.ts";
import { Trial } from "../parts/trial.tsx";
import { VirtualList } from "../parts/virtual.tsx";
import { address, embedded, go, parameter, setParameters } from "../state/address.ts";
import { answerTo, useAnswer } from "../state/fetch.ts";
import { useKeys } from "../state/keys.ts";
import { listParameters, tabAddress } from "../state/place.ts";
import { BlockView } from "../tokens/block-view.tsx";
import { addressOfToken, type Block, blocksOf, contains, placeOf } from "../tokens/blocks.ts";
import { colorings, type Range, rangeOf } from "../tokens/colorings.ts";
import { FindBox, useFind } from "../tokens/find-box.tsx";
import { currentToken, PromptBlock, SampledBlock } from "../tokens/token-block.tsx";
import { Legend, TokenNumbers } from "../tokens/token-numbers.tsx";

export function Episode({ run, episode }: { run: string; episode: string }) {
  const { data, error } = useAnswer("/api/runs/:run/episodes/:episode", { run, episode });
  const neighbors = data ? neighborsOf(run, data) : { previous: null, next: null };
  const open = (by: 1 | -1) => {
    const to = neighborAddress(run, neighbors, by);
    if (to !== undefined) go(to);
  };
  useKeys({ "[": () => open(-1), "]": () => open(1) });
  if (!data) return <Pending error={error} />;
  return (
    <>
      <EpisodeHead run={run} episode={data} neighbors={neighbors} />
      <Transcript run={run} episode={data} />
    </>
  );
}

/** The episodes before and after one: in the list from which it was opened, or in its step. */
interface Neighbors {
  previous: string | null;
  next: string | null;
  /** The place in the list, from 0; undefined if the episode was not opened from a list. */
  list?: { place: number; total: number } | undefined;
}

/** The list of a live run grows at its start: the episode is searched this far around its old place. */
const around = 100;

/** Reads signals, so that a component is drawn again when the list changes. */
function neighborsOf(run: string, { key, previous, next }: EpisodeData): Neighbors {
  if (embedded !== undefined || Object.values(listParameters()).every((value) => value === ""))
    return { previous, next };
  const place = Number(parameter("place")) || 0;
  // In an edited link the place can be wrong: then the neighbors are those in the step.
  return (
    inPart(run, key, Math.max(0, place - 1), 3) ??
    inPart(run, key, Math.max(0, place - around), 2 * around) ?? { previous, next }
  );
}

/** Undefined if this part of the list does not have the episode and both of its neighbors. */
function inPart(run: string, key: string, offset: number, limit: number): Neighbors | undefined {
  const part = keysOf(run, offset, limit);
  if (part === undefined) return { previous: null, next: null };
  const { keys, total } = part;
  const at = keys.indexOf(key);
  const place = offset + at;
  if (at < 0) return undefined;
  if ((at === 0 && place > 0) || (at === keys.length - 1 && place < total - 1)) return undefined;
  return { previous: keys[at - 1] ?? null, next: keys[at + 1] ?? null, list: { place, total } };
}

/** Undefined until it is answered. */
function keysOf(run: string, offset: number, limit: number): { keys: string[]; total: number } | undefined {
  const { q, filter, sort, order } = listParameters();
  const part = { run, filter, offset: String(offset), limit: String(limit) };
  if (q !== "") {
    const { data } = answerTo("/api/runs/:run/search", { ...part, q });
    return data && { total: data.total, keys: data.hits.map(({ episode }) => episode.key) };
  }
  const sorted = { sort: (sort || "newest") as "newest", order: order === "asc" ? "asc" : "desc" } as const;
  const { data } = answerTo("/api/runs/:run/episodes", { ...part, ...sorted });
  return data && { total: data.total, keys: data.rows.map(({ key }) => key) };
}

/** Undefined at the ends of the list. */
function neighborAddress(run: string, { previous, next, list }: Neighbors, by: 1 | -1): string | undefined {
  const key = by < 0 ? previous : next;
  if (key === null) return undefined;
  const shown = { color: parameter("color"), tokens: parameter("tokens"), scale: parameter("scale") };
  return address(["runs", run, "episodes", key], {
    ...shown,
    ...(list ? { ...listParameters(), place: list.place + by } : {}),
  });
}

interface EpisodeHeadProps {
  run: string;
  episode: EpisodeData;
  neighbors: Neighbors;
}

function EpisodeHead({ run, episode, neighbors }: EpisodeHeadProps) {
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
  } = episode;
  const validation = kind === "train" ? null : kind;
  const { list } = neighbors;
  const [previous, next] = [neighborAddress(run, neighbors, -1), neighborAddress(run, neighbors, 1)];
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
          {list && (
            <Link to={tabAddress(run, "episodes")} title="the list">
              {list.place + 1} of {count(list.total, "episode")}
            </Link>
          )}
          {previous !== undefined && (
            <Link to={previous} title="[">
              ‹ previous
            </Link>
          )}
          {next !== undefined && (
            <Link to={next} title="]">
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
      <Trial episode={episode} />
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

const scales = [
  { value: "", label: "run", title: "a color means the same in all episodes of the run" },
  { value: "episode", label: "episode", title: "full color for the largest number of this episode" },
] as const;

function Transcript({ run, episode }: { run: string; episode: EpisodeData }) {
  const own = useMemo(() => new Map(coloringNames.map((name) => [name, boundsOf(name, episode)])), [episode]);
  const ofRun = useAnswer("/api/runs/:run/scales", { run });
  const asked = parameter("color");
  // A validation has no advantages: its tokens begin with their log-probability.
  const first = coloringNames.find((one) => own.get(one)) ?? "advantage";
  const name: ColoringName = coloringNames.find((one) => one === asked) ?? first;
  // The color of a token means the same in all episodes of the run, unless the reader wants to see small differences.
  const byEpisode = parameter("scale") === "episode" || ofRun.error !== undefined;
  const bounds = own.get(name) ?? null;
  const range = rangeOf(colorings[name], bounds && !byEpisode ? (ofRun.data?.ranges[name] ?? bounds) : bounds);
  const tokens = parameter("tokens");
  const hasTexts = episode.detail.some(({ turnList }) => turnList.some(({ sampled }) => sampled.pieces));
  const blocks = useMemo(() => blocksOf(episode, tokens !== ""), [episode, tokens !== ""]);
  useKeys({
    c: () => {
      const known = coloringNames.filter((one) => own.get(one));
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
              title: own.get(one) ? colorings[one].about : "not recorded for this episode",
              disabled: !own.get(one),
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
        <div class="field">
          scale
          <Choice
            label="scale of the colors"
            value={byEpisode ? "episode" : ""}
            options={scales.map((scale) => ({
              ...scale,
              disabled: scale.value === "" && ofRun.error !== undefined,
            }))}
            onChange={(scale) => setParameters({ scale })}
          />
        </div>
      </div>
      {!hasTexts && tokens === "" && (
        <p class="note warning">
          The run folder has no tokenizer, so the text has no colors.{" "}
          <button type="button" class="link" onClick={() => setParameters({ tokens: "ids" })}>
            Show token ids in color
          </button>
        </p>
      )}
      <VirtualList
        count={blocks.length}
        estimate={(index) => heightOf(blocks[index]!)}
        class="transcript"
        overscan={2}
        shown={find.block ?? target}
      >
        {(index) => <Shown block={blocks[index]!} coloring={name} range={range} ids={tokens === "ids"} />}
      </VirtualList>
      <TokenNumbers episode={episode} shown={name} />
    </>
  );
}

interface ShownProps {
  block: Block;
  coloring: ColoringName;
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

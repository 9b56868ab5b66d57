/** The parts of a transcript that are not tokens: messages, tools, and the parsed reply. */
import type { Message, MessageImage, ToolCall, TrajectoryDetail, Turn } from "../../src/apps/view/queries/episode.ts";
import { Advantage, Reward, Text } from "../parts/basics.tsx";
import { count, short } from "../parts/numbers.ts";
import { oneLine, printable } from "../parts/printable.ts";
import { path } from "../state/address.ts";
import { imageAt } from "../state/fetch.ts";
import type { Block } from "./blocks.ts";

export function BlockView({ block }: { block: Exclude<Block, { kind: "sampled" | "prompt" }> }) {
  switch (block.kind) {
    case "trajectory":
      return <TrajectoryHead of={block.of} />;
    case "turn":
      return <TurnHead of={block.of} turn={block.turn} />;
    case "tools":
      return <Tools tools={block.of} />;
    case "message":
      return <MessageBlock {...block} />;
    case "reply":
      return (
        <div class="message assistant">
          {block.first && <span class="role">assistant</span>}
          <div class="text" dir="auto">
            {printable(block.text)}
          </div>
        </div>
      );
    case "result":
      return <Result of={block.of} />;
  }
}

const TrajectoryHead = ({ of: { role, instance, reward, advantage, tokens, turns } }: { of: TrajectoryDetail }) => (
  <h2 class="trajectory">
    {oneLine(role)} {instance ?? ""}
    <span class="verdict">
      <span class="muted">reward</span> <Reward value={reward} />
      <span class="muted">advantage</span> <Advantage value={advantage} />
      <span class="muted">
        {count(tokens, "token")}, {count(turns, "turn")}
      </span>
    </span>
  </h2>
);

function TurnHead({ of: { promptLength, starts, continues }, turn }: { of: Turn; turn: number }) {
  return (
    <h3 class="turn" data-row tabIndex={-1}>
      Turn {turn + 1}
      <span class="muted">
        {count(promptLength, "token")} of prompt
        {continues !== null && `, continues turn ${continues + 1}`}
        {starts && turn > 0 && `, starts a new sequence: ${starts.replaceAll("_", " ")}`}
      </span>
    </h3>
  );
}

function Tools({ tools }: { tools: NonNullable<Turn["tools"]> }) {
  return (
    <details class="tools-offered">
      <summary>{count(tools.length, "tool")} offered</summary>
      <ul>
        {tools.map(({ name, description, parameters }) => (
          <li key={name}>
            <code>{printable(name)}</code> {description && <Text>{description}</Text>}
            {parameters !== undefined && <pre>{printable(JSON.stringify(parameters, null, 2))}</pre>}
          </li>
        ))}
      </ul>
    </details>
  );
}

type MessageBlockProps = Extract<Block, { kind: "message" }>;

function MessageBlock({ of, part, text, first, last }: MessageBlockProps) {
  return (
    <div class={`message ${of.role}${part === "thinking" ? " thinking" : ""}`}>
      {first && <span class="role">{roleName(of)}</span>}
      {part === "thinking" && <span class="muted">thinking</span>}
      <div class="text" dir="auto">
        {printable(text)}
      </div>
      {last && of.images && <Images images={of.images} />}
      {last && (of.toolCalls ?? []).map((call) => <Call key={call.id} call={call} />)}
    </div>
  );
}

/** Thumbnails; a report contains only small images. */
function Images({ images }: { images: readonly MessageImage[] }) {
  const run = decodeURIComponent(path.value.split("/")[2] ?? "");
  return (
    <div class="images">
      {images.map(({ hash, width, height }, index) => {
        const source = imageAt(run, hash);
        const key = `${index} ${hash}`;
        const alt = `image ${index + 1}, ${width} x ${height} pixels`;
        if (source === undefined) {
          return (
            <span key={key} class="muted">
              {alt}: not in this report
            </span>
          );
        }
        return (
          <a key={key} href={source} target="_blank" rel="noreferrer">
            <img src={source} alt={alt} title={alt} width={width} height={height} loading="lazy" />
          </a>
        );
      })}
    </div>
  );
}

const roleName = ({ role, name }: Message) => (name === undefined ? role : `${role} ${oneLine(name)}`);

const Call = ({ call }: { call: ToolCall }) => (
  <div class="call">
    <span class="muted">calls</span> <code>{printable(call.name)}</code>
    <pre>{printable(call.arguments)}</pre>
  </div>
);

/** The parsed reply, and why it ended. */
function Result({ of: { reply, sampled, stopReason, cutOffBy, reward, processed } }: { of: Turn }) {
  const ended =
    stopReason === "length"
      ? `cut off by ${(cutOffBy ?? "a limit").replaceAll("_", " ")}`
      : stopReason === "stop"
        ? "stopped by itself"
        : "aborted";
  return (
    <div class="result">
      {reply.toolCalls.map((call) => (
        <Call key={call.id} call={call} />
      ))}
      {reply.problems.map(({ kind, message }) => (
        <p key={message} class="note warning">
          {kind.replaceAll("_", " ")}: {printable(message)}
        </p>
      ))}
      <p class="muted">
        {count(sampled.ids.length, "token")}, {ended}
        {reward !== null && `, reward ${short(reward)}`}
        {processed && ", log-probabilities after temperature and filters"}
      </p>
    </div>
  );
}

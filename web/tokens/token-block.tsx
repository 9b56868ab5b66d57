/** Tokens of a prompt or a reply, each with its color. */
import { signal, useSignalEffect } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useRef } from "preact/hooks";
import type { Turn } from "../../src/view/api.ts";
import { printable } from "../parts/printable.ts";
import { type Coloring, isTrained, type Range, shadeOf } from "./colorings.ts";

/** A token of turn `turn` of a trajectory: of its prompt, or of those that were sampled. */
export interface TokenPlace {
  trajectory: number;
  turn: number;
  prompt: boolean;
  index: number;
}

/** The token whose numbers are shown. */
export const currentToken = signal<TokenPlace | null>(null);

export interface TokenRange extends Omit<TokenPlace, "index"> {
  of: Turn;
  from: number;
  to: number;
}

/** What a token shows. Bytes of a split character, and tokens without a text, show their id. */
export function tokenText(piece: string | undefined, id: number): string {
  if (piece === undefined || piece === "") return `⟨${id}⟩`;
  return printable(piece.replaceAll("\ufffd", `⟨${id}⟩`));
}

interface SampledBlockProps extends TokenRange {
  coloring: Coloring;
  range: Range | null;
  ids: boolean;
}

export function SampledBlock({ coloring, range, ids, ...place }: SampledBlockProps) {
  const { sampled } = place.of;
  const thinking = thinkingRange(place.of);
  return (
    <TokenGroup {...place} ids={ids}>
      {place.from === 0 && <span class="role">assistant</span>}
      {sampled.ids.slice(place.from, place.to).map((id, offset) => {
        const index = place.from + offset;
        const { side, strength } = shadeOf(coloring, sampled, index, range);
        const isThinking = index >= thinking.from && index < thinking.to;
        const name = `${isTrained(sampled, index) ? side : "masked"}${isThinking ? " thinking" : ""}`;
        return (
          <Token
            key={index}
            index={index}
            id={id}
            piece={sampled.pieces?.[index]}
            ids={ids}
            class={name}
            strength={strength}
          />
        );
      })}
    </TokenGroup>
  );
}

export const PromptBlock = ({ ids, ...place }: TokenRange & { ids: boolean }) => (
  <TokenGroup {...place} ids={ids}>
    {place.from === 0 && <span class="role">prompt</span>}
    {place.of.prompt.ids.slice(place.from, place.to).map((id, offset) => {
      const index = place.from + offset;
      return (
        <Token
          key={index}
          index={index}
          id={id}
          piece={place.of.prompt.pieces?.[index]}
          ids={ids}
          class="neutral"
          strength={0}
        />
      );
    })}
  </TokenGroup>
);

/** Follows the pointer and the arrow keys, and frames the current token. */
function TokenGroup({
  of,
  from,
  to,
  ids,
  children,
  ...place
}: TokenRange & { ids: boolean; children: ComponentChildren }) {
  const element = useRef<HTMLDivElement>(null);
  const isHere = (token: TokenPlace | null) =>
    token?.turn === place.turn &&
    token.trajectory === place.trajectory &&
    token.prompt === place.prompt &&
    token.index >= from &&
    token.index < to;
  useSignalEffect(() => {
    const token = currentToken.value;
    delete element.current?.querySelector<HTMLElement>("[data-current]")?.dataset.current;
    if (!isHere(token)) return;
    const framed = element.current?.querySelector<HTMLElement>(`[data-token="${token?.index}"]`);
    if (framed) framed.dataset.current = "";
  });
  const pick = (event: Event) => {
    const token = event.target instanceof Element ? event.target.closest<HTMLElement>("[data-token]") : null;
    if (token) currentToken.value = { ...place, index: Number(token.dataset.token) };
  };
  const move = (event: KeyboardEvent) => {
    const by = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
    if (by === 0) return;
    event.preventDefault();
    const now = currentToken.peek();
    const index = now && isHere(now) ? now.index + by : by > 0 ? from : to - 1;
    currentToken.value = { ...place, index: Math.max(from, Math.min(to - 1, index)) };
  };
  const total = (place.prompt ? of.prompt : of.sampled).ids.length;
  return (
    // biome-ignore lint/a11y/useSemanticElements: a fieldset is for controls
    <div
      ref={element}
      class={ids ? "tokens ids" : "tokens"}
      dir="auto"
      role="group"
      // biome-ignore lint/a11y/noNoninteractiveTabindex: the arrow keys move from token to token
      tabIndex={0}
      aria-label={`${place.prompt ? "prompt" : "sampled"} tokens ${from + 1} to ${to} of ${total}`}
      onPointerOver={pick}
      onClick={pick}
      onKeyDown={move}
    >
      {children}
    </div>
  );
}

interface TokenProps {
  index: number;
  id: number;
  piece: string | undefined;
  ids: boolean;
  class: string;
  strength: number;
}

function Token({ index, id, piece, ids, strength, ...props }: TokenProps) {
  const text = tokenText(piece, id);
  return (
    <span
      class={`token ${props.class}`}
      data-token={index}
      style={strength > 0 ? { "--strength": strength.toFixed(3) } : undefined}
    >
      {ids ? <bdi>{text.replaceAll("\n", "⏎")}</bdi> : text}
      {ids && <small>{id}</small>}
    </span>
  );
}

/** The tokens `[from, to)` of the reply's thinking. */
export function thinkingRange({ reply, sampled }: Pick<Turn, "reply" | "sampled">): { from: number; to: number } {
  const { thinking } = reply;
  const start = thinking && sampled.pieces ? sampled.pieces.join("").indexOf(thinking) : -1;
  const range = { from: 0, to: 0 };
  if (start < 0 || !thinking) return range;
  let end = 0;
  for (const piece of sampled.pieces ?? []) {
    end += piece.length;
    if (end <= start) range.from += 1;
    if (end < start + thinking.length) range.to += 1;
  }
  return { from: range.from, to: range.to + 1 };
}

/** Tokens of a prompt or a reply, each with its color. */
import { signal, useSignalEffect } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useRef } from "preact/hooks";
import type { Turn } from "../../src/apps/view/queries/episode.ts";
import { type ColoringName, isTrained } from "../../src/apps/view/token-scale.ts";
import { setParameters } from "../state/address.ts";
import { addressOfToken, type TokenPlace } from "./blocks.ts";
import { type Range, shadeOf } from "./colorings.ts";
import { thinkingRange, tokenText } from "./token-text.ts";

/** The token whose numbers are shown. */
export const currentToken = signal<TokenPlace | null>(null);

export interface TokenRange extends Omit<TokenPlace, "index"> {
  of: Turn;
  from: number;
  to: number;
}

interface SampledBlockProps extends TokenRange {
  coloring: ColoringName;
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
  const link = () => setParameters({ at: addressOfToken(currentToken.peek()) });
  const move = (event: KeyboardEvent) => {
    if (event.key === "Enter") link();
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
      onClick={(event) => {
        pick(event);
        link();
      }}
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

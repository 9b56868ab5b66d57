/** The legend of a coloring, and the numbers of the current token. */
import type { Episode } from "../../src/apps/view/queries/episode.ts";
import { type ColoringName, coloringNames, isTrained, tokenNumbers } from "../../src/apps/view/token-scale.ts";
import { short } from "../parts/numbers.ts";
import { type Coloring, colorings, legendValues, type Range, shade } from "./colorings.ts";
import { currentToken } from "./token-block.tsx";
import { tokenText } from "./token-text.ts";

export function Legend({ coloring, range }: { coloring: Coloring; range: Range | null }) {
  if (range === null) return <p class="muted token-legend">Not recorded for this episode.</p>;
  return (
    <div class="token-legend">
      <ul aria-label={`colors of ${coloring.label}`}>
        {legendValues(coloring, range).map((value) => {
          const { side, strength } = shade(coloring, value, range);
          return (
            <li key={value} class={`token ${side}`} style={{ "--strength": strength.toFixed(3) }}>
              {coloring.show(value)}
            </li>
          );
        })}
        <li class="token masked">not trained on</li>
      </ul>
      <p class="muted">{coloring.about}</p>
    </div>
  );
}

/** Fixed at the bottom of the window. */
export function TokenNumbers({ episode, shown }: { episode: Episode; shown: ColoringName }) {
  const place = currentToken.value;
  const turn = place && episode.detail[place.trajectory]?.turnList[place.turn];
  if (!place || !turn) {
    return <aside class="numbers muted">Point at a token, or focus a block and use ← →, to read its numbers.</aside>;
  }
  const { index, prompt } = place;
  const { ids, pieces } = prompt ? turn.prompt : turn.sampled;
  const id = ids[index];
  if (id === undefined) return null;
  const choice = prompt ? undefined : turn.sampled.teacherChoices?.[index];
  const values = prompt
    ? []
    : coloringNames.flatMap((name) => {
        const value = tokenNumbers[name](turn.sampled, index);
        return value === null ? [] : [{ name, label: colorings[name].label, text: colorings[name].show(value) }];
      });
  return (
    <aside class="numbers" aria-live="polite" aria-label="the token's numbers">
      <span class="piece">
        <bdi>{tokenText(pieces?.[index], id).replaceAll("\n", "⏎")}</bdi>
      </span>
      <dl>
        <div>
          <dt>{prompt ? "prompt token" : "token"}</dt>
          <dd>
            {short(index + 1)} of {short(ids.length)}
          </dd>
        </div>
        <div>
          <dt>id</dt>
          <dd>{id}</dd>
        </div>
        {prompt && (
          <div>
            <dt>mask</dt>
            <dd>prompt</dd>
          </div>
        )}
        {values.map(({ name, label, text }) => (
          <div key={name} class={name === shown ? "shown" : undefined}>
            <dt>{label}</dt>
            <dd>{text}</dd>
          </div>
        ))}
        {choice && (
          <div class={shown === "teacher" ? "shown" : undefined}>
            <dt>teacher's choice</dt>
            <dd>
              {choice.id === id ? "this token" : <bdi>{tokenText(choice.piece, choice.id).replaceAll("\n", "⏎")}</bdi>}
            </dd>
          </div>
        )}
        {!prompt && !isTrained(turn.sampled, index) && (
          <div>
            <dt>note</dt>
            <dd>not trained on, so its color is neutral</dd>
          </div>
        )}
      </dl>
    </aside>
  );
}

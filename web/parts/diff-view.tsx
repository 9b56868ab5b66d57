/** The differences between two texts or two token sequences. */
import { type ChangeObject, diffArrays, diffWordsWithSpace } from "diff";
import { useMemo } from "preact/hooks";
import { tokenText } from "../tokens/token-text.ts";
import { printable } from "./printable.ts";

/** Time limit of a comparison. */
const limit = { timeout: 500, maxEditLength: 4000 };

/** Undefined if the comparison takes too long. */
export const textChanges = (before: string, after: string): ChangeObject<string>[] | undefined =>
  diffWordsWithSpace(before, after, limit);

export function DiffView({ before, after }: { before: string; after: string }) {
  const changes = useMemo(() => textChanges(before, after), [before, after]);
  if (changes === undefined) return <p class="muted">These texts are too different to be compared word by word.</p>;
  return (
    <div class="text diff" dir="auto">
      {changes.map(({ added, removed, value }, index) => {
        const key = `${index} ${added} ${removed}`;
        if (added) return <ins key={key}>{printable(value)}</ins>;
        return removed ? <del key={key}>{printable(value)}</del> : <span key={key}>{printable(value)}</span>;
      })}
    </div>
  );
}

export interface Tokens {
  ids: readonly number[];
  pieces?: readonly string[] | undefined;
}

/** Compares token ids, because the same text can have different tokens. */
export function TokenDiff({ before, after }: { before: Tokens; after: Tokens }) {
  const changes = useMemo(() => diffArrays([...before.ids], [...after.ids], limit), [before, after]);
  if (changes === undefined) return <p class="muted">These replies are too different to be compared token by token.</p>;
  let left = 0;
  let right = 0;
  return (
    <div class="tokens ids diff" dir="auto">
      {changes.flatMap(({ added, removed, value }) =>
        value.map((id) => {
          const piece = removed ? before.pieces?.[left] : after.pieces?.[right];
          const key = `${left} ${right}`;
          if (!added) left += 1;
          if (!removed) right += 1;
          return (
            <span key={key} class={`token ${added ? "added" : removed ? "removed" : ""}`}>
              <bdi>{tokenText(piece, id).replaceAll("\n", "⏎")}</bdi>
              <small>{id}</small>
            </span>
          );
        }),
      )}
    </div>
  );
}

/** Templates such as `{{ item.answers[0] }}` and `{{ sample.output_text }}`. */
import { UserError } from "../../errors.ts";
import { isObject } from "../../is-object.ts";
import { own } from "../../own.ts";

export interface Namespaces {
  /** The row without its messages. */
  item: Readonly<Record<string, unknown>>;
  sample: Readonly<Record<string, unknown>>;
}

const sampleParts = ["output_text", "output_json", "output_tools", "choices"];

/**
 * @returns the text with values in place of references: text as it is, other values as JSON. A part of the sample that the
 * reply does not have is empty.
 * @throws UserError for an unknown namespace, now; and later for an item without the value
 */
export function compileTemplate(template: string): (values: Namespaces) => string {
  const pieces = template
    .split(/\{\{(.*?)\}\}/s)
    .map((piece, index) => (index % 2 === 0 ? asText(piece) : toPath(piece, template)));
  return (values) =>
    pieces
      .map((piece) => {
        if (typeof piece === "string") return piece;
        const found = valueAt(values, piece);
        if (found === undefined && piece[0] === "item") {
          throw new UserError(`the item has no ${piece.slice(1).join(".")}, which the grader reads`, {
            hint: `its keys are ${Object.keys(values.item).join(", ") || "none"}`,
          });
        }
        return typeof found === "string" ? found : found === undefined ? "" : JSON.stringify(found);
      })
      .join("");
}

/** `{{ item.answer }` would be compared as it is. */
function asText(piece: string): string {
  const open = /\{\{\s*(item|sample)\b.{0,40}/.exec(piece);
  if (open !== null) throw new UserError(`${open[0]} is not closed by }}`);
  return piece;
}

function toPath(reference: string, template: string): string[] {
  const text = reference.trim();
  if (!/^\w+(\.[\w-]+|\[\d+\]|\[(["'])[^"']+\2\])*$/.test(text)) {
    throw new UserError(`{{${reference}}} is not a reference such as {{ item.answer }} or {{ sample.output_text }}`);
  }
  const path = [...text.matchAll(/[\w-]+|(["'])([^"']+)\1/g)].map(([part, , quoted]) => quoted ?? part);
  const [namespace, part] = path;
  if (namespace === "item") return path;
  if (namespace === "sample" && part !== undefined && sampleParts.includes(part)) return path;
  const shown = JSON.stringify(template.length > 60 ? `${template.slice(0, 60)}...` : template);
  throw new UserError(
    `${text} in ${shown} is not supported: templates read item, and of sample ${sampleParts.join(", ")}`,
  );
}

function valueAt(values: Namespaces, path: readonly string[]): unknown {
  return path.reduce<unknown>((inner, part) => {
    if (Array.isArray(inner)) return inner[Number(part)];
    return isObject(inner) ? own(inner, part) : undefined;
  }, values);
}

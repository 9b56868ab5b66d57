/** Writes a composed configuration as YAML that reads back as the same configuration. */
import { Document, visit, type Node as YamlNode } from "yaml";
import { type Origin, originText } from "../tree/origin.ts";
import { readScalar } from "./scalars.ts";

/** Escapes text so that it reads back unchanged. */
export function escapeReferences(text: string): string {
  return text.replaceAll(/(\\*)\$\{/g, "$1$1\\${");
}

/**
 * Every key on its own line with its origin as a comment: `learning_rate: 0.001 # train.yaml:3:5`.
 * @param origins by key; a key without one gets no comment
 * @param options `unresolved`: the tree still contains references, which are kept
 */
export function toYaml(
  tree: object,
  origins: ReadonlyMap<string, Origin> = new Map(),
  { unresolved = false }: { unresolved?: boolean } = {},
): string {
  const document = new Document(tree);
  visit(document, {
    Scalar(_, node) {
      if (typeof node.value !== "string") return;
      // `off` and `1:30` are read as text only in quotes.
      if (readScalar(node.value) !== node.value) node.type = "QUOTE_DOUBLE";
      if (!unresolved) node.value = escapeReferences(node.value);
    },
    Seq(_, node) {
      node.flow = true;
    },
    Map(_, node) {
      node.flow = node.items.length === 0;
    },
  });
  for (const [key, origin] of origins) {
    const node = document.getIn(key.split("."), true) as YamlNode | undefined;
    if (node !== undefined) node.comment = ` ${originText(origin)}`;
  }
  // Text is quoted and never folded, so each key stays on one line with its comment.
  return document.toString({ lineWidth: 0, flowCollectionPadding: false, blockQuote: false });
}

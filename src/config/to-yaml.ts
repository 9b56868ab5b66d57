/** A composed configuration as a YAML file that reads back as the same configuration. */
import { Document, visit, type Node as YamlNode } from "yaml";
import { escapeReferences } from "./interpolate.ts";
import { type Origin, originText } from "./origin.ts";
import type { Config } from "./schema.ts";

/**
 * Every key on its own line with its origin as a comment: `learning_rate: 0.001 # train.yaml:3:5`.
 * @param origins by key; a key without one gets no comment
 */
export function toYaml(config: Config, origins: ReadonlyMap<string, Origin> = new Map()): string {
  const document = new Document(config);
  visit(document, {
    Scalar(_, node) {
      if (typeof node.value === "string") node.value = escapeReferences(node.value);
    },
    Seq(_, node) {
      node.flow = true;
    },
  });
  for (const [key, origin] of origins) {
    const node = document.getIn(key.split("."), true) as YamlNode | undefined;
    if (node !== undefined) node.comment = ` ${originText(origin)}`;
  }
  // Text is quoted, never folded over lines, so that each key keeps its one line and comment.
  return document.toString({ lineWidth: 0, flowCollectionPadding: false, blockQuote: false });
}

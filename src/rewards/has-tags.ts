import { type Grade, grade } from "./grade.ts";

/**
 * 1 when a reply is exactly these tagged parts in this order, each once and with something in it, only white space
 * between; else the share of the tags that stand there once, opened before closed, halved.
 *
 * @example hasTags("<think>so</think><answer>4</answer>", ["think", "answer"]).reward // 1
 */
export function hasTags(reply: string, tags: readonly string[]): Grade {
  if (tags.length === 0) throw new Error("hasTags expects the names of tags, got none");
  const whole = tags.map((tag) => String.raw`<${literal(tag)}>\s*\S[\s\S]*?</${literal(tag)}>`).join(String.raw`\s*`);
  const sound = tags.filter((tag) => {
    const [opens, closes] = [positions(reply, `<${tag}>`), positions(reply, `</${tag}>`)];
    return opens.length === 1 && closes.length === 1 && opens[0]! < closes[0]!;
  });
  const correct = sound.length === tags.length && new RegExp(String.raw`^\s*${whole}\s*$`).test(reply);
  const missing = tags.filter((tag) => !sound.includes(tag));
  const explanation = correct
    ? `has ${tags.join(", ")} in order`
    : missing.length > 0
      ? `not exactly one ${missing.map((tag) => `<${tag}>...</${tag}>`).join(", ")}`
      : `the parts ${tags.join(", ")} are empty, out of order, or not all of the reply`;
  return grade(correct, explanation, correct ? 1 : (0.5 * sound.length) / tags.length);
}

const literal = (tag: string) => tag.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");

function positions(text: string, piece: string): number[] {
  const found: number[] = [];
  for (let at = text.indexOf(piece); at >= 0; at = text.indexOf(piece, at + 1)) found.push(at);
  return found;
}

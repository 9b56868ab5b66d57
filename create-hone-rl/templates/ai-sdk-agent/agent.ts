/** An ordinary agent of the AI SDK, without code for training. Replace it with yours. */
import { generateText, type LanguageModel, stepCountIs, tool } from "ai";
import { z } from "zod";

const prices: Readonly<Record<string, number>> = { pen: 2, book: 12, lamp: 30 };

const price = tool({
  description: "Returns the price of one item.",
  inputSchema: z.object({ item: z.enum(["pen", "book", "lamp"]) }),
  execute: ({ item }) => prices[item],
});

export async function shop(model: LanguageModel, question: string): Promise<string> {
  const { text } = await generateText({
    model,
    system: "Look up the price with the tool, then answer with the number alone.",
    prompt: question,
    tools: { price },
    stopWhen: stepCountIs(4),
  });
  return text;
}

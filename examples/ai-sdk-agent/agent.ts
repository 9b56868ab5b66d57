/** An ordinary agent written with the AI SDK. It has no code for training. */
import { generateText, type LanguageModel, stepCountIs, tool } from "ai";
import { z } from "zod";

const multiply = tool({
  description: "Multiplies two integers.",
  inputSchema: z.object({ a: z.number(), b: z.number() }),
  execute: ({ a, b }) => a * b,
});

export async function calculate(model: LanguageModel, question: string): Promise<string> {
  const { text } = await generateText({
    model,
    system: "Use the tool, then answer with the number alone.",
    prompt: question,
    tools: { multiply },
    stopWhen: stepCountIs(3),
    maxOutputTokens: 64,
  });
  return text;
}

/** Your program after training: the same agent with the model that `npm run serve` serves. */
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { shop } from "./agent.ts";

const served = createOpenAICompatible({ name: "hone", baseURL: "http://127.0.0.1:4000/v1" })("policy");
const [question = "What does a book cost?"] = process.argv.slice(2);
console.log(await shop(served, question));

// Run by the node that scripts/agents installs: a loop with one tool, then a schema. argv: URL, provider.

import { appendFileSync } from "node:fs";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, Output, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const [url, provider] = process.argv.slice(2);
const settings = { baseURL: `${url}/v1`, apiKey: "unused" };
const model = {
  openai: () => createOpenAI(settings)("thinker"),
  "openai-compatible": () =>
    createOpenAICompatible({ ...settings, name: "specllama", supportsStructuredOutputs: true })("thinker"),
  anthropic: () => createAnthropic(settings)("thinker"),
}[provider]();
const thinking = { anthropic: { thinking: { type: "enabled", budgetTokens: 1024 } } };
const append = tool({
  description: "Append a line to the file.",
  inputSchema: z.object({ line: z.string() }),
  execute: async ({ line }) => {
    appendFileSync("file", `${line}\n`);
    return "written";
  },
});
const asked = { model, tools: { append }, prompt: "write to the file", stopWhen: stepCountIs(5), maxRetries: 0 };
const { text, steps } = await generateText({ ...asked, providerOptions: thinking });
const thoughts = steps.filter((step) => step.reasoningText).length;
const streamed = streamText({ ...asked, providerOptions: thinking, onError: ({ error }) => { throw error; } });
let again = "";
for await (const part of streamed.textStream) again += part;
// A second turn; of the provider "openai" its history is references to items.
const { response } = await generateText({ model, prompt: "Who is it?", maxOutputTokens: 8, maxRetries: 0 });
const asking = { role: "user", content: "Who is it?" };
const messages = [asking, ...response.messages, asking];
await generateText({ model, messages, maxOutputTokens: 8, maxRetries: 0 });
const schema = z.object({ kind: z.literal("one"), old: z.boolean() });
const output = Output.object({ schema });
const found = await generateText({ model, prompt: "Who is it?", output, maxRetries: 0 });
schema.parse(found.output);
process.stdout.write(`${text} ${again} ${thoughts}`);

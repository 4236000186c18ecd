// The official SDKs against a server: `node calls.mjs URL MODEL NAME...` makes these calls one after another and prints what
// the SDKs made of the answers, as one JSON object by name. Python judges it (test_node.py).
import Anthropic from "@anthropic-ai/sdk";
import {createAnthropic} from "@ai-sdk/anthropic";
import {createOpenAI} from "@ai-sdk/openai";
import {createOpenAICompatible} from "@ai-sdk/openai-compatible";
import {embedMany, generateText, streamText} from "ai";
import OpenAI from "openai";

const [url, model, ...names] = process.argv.slice(2);
globalThis.AI_SDK_LOG_WARNINGS = false;
const apiKey = "unused", baseURL = `${url}/v1`;
const messages = [{role: "user", content: "What is the capital of France? Answer in one sentence."}];
const ask = {model, messages};
const openai = new OpenAI({baseURL, apiKey, maxRetries: 0});
const anthropic = new Anthropic({baseURL: url, apiKey, maxRetries: 0});
const compatible = createOpenAICompatible({name: "imp", baseURL, apiKey, includeUsage: true});

async function all(stream) {
  const out = [];
  for await (const each of stream) out.push(each);
  return out;
}

/** What generateText and streamText tell, in plain values. */
async function told(answer) {
  const usage = await answer.usage;
  return {text: await answer.text, reason: await answer.finishReason, input: usage.inputTokens, output: usage.outputTokens};
}

async function streamed(model) {
  const answer = streamText({model, messages, maxRetries: 0, onError() {}});
  const parts = await all(answer.textStream);
  return {parts, ...await told(answer)};
}

/** What a call was refused with; null where it was not. */
const error = call => call.then(() => null, e =>
  ({kind: e.constructor.name, status: e.status ?? e.statusCode, message: e.message, body: e.error ?? e.data?.error}));

const CALLS = {
  async chat() {
    const answer = await openai.chat.completions.create({...ask, temperature: 0.5, stop: ["never"]});
    return {text: answer.choices[0].message.content, reason: answer.choices[0].finish_reason, usage: answer.usage, id: answer.id, request: answer._request_id};
  },
  async stream() {
    const chunks = await all(await openai.chat.completions.create({...ask, stream: true, stream_options: {include_usage: true}}));
    return {text: chunks.map(chunk => chunk.choices[0]?.delta.content ?? "").join(""), usages: chunks.map(chunk => chunk.usage).filter(Boolean),
            reasons: chunks.map(chunk => chunk.choices[0]?.finish_reason).filter(Boolean)};
  },
  async runner() {
    const stream = openai.chat.completions.stream(ask), seen = [];
    stream.on("content", (delta, snapshot) => seen.push([delta, snapshot]));
    const final = await stream.finalChatCompletion();
    return {text: final.choices[0].message.content, joined: seen.map(([delta]) => delta).join(""), snapshot: seen.at(-1)[1]};
  },
  /** Leaves while the answer is still coming. */
  async left() {
    const stream = await openai.chat.completions.create({...ask, stream: true});
    let text = "";
    for await (const chunk of stream) {
      text += chunk.choices[0].delta.content ?? "";
      if (text.length > 20) break;
    }
    return text;
  },
  async completion() {
    const answer = await openai.completions.create({model, prompt: "Once", max_tokens: 2, logprobs: 1});
    return {text: answer.choices[0].text, reason: answer.choices[0].finish_reason, tokens: answer.choices[0].logprobs.tokens};
  },
  models: async () => (await all(openai.models.list())).map(each => each.id),
  "models-anthropic": async () => (await all(anthropic.models.list())).map(each => each.id),
  "bad-field": () => error(openai.chat.completions.create({...ask, temperature: 9})),
  "bad-stream": () => error(openai.chat.completions.create({...ask, stream: true, max_tokens: -1})),
  "bad-model": () => error(openai.chat.completions.create({...ask, model: "none"})),
  "bad-middle": () => error((async () => all(await openai.chat.completions.create({...ask, stream: true})))()),
  async embeddings() {
    const input = ["one", "two"];
    const decoded = await openai.embeddings.create({model, input}), plain = await openai.embeddings.create({model, input, encoding_format: "float"});
    return {decoded: decoded.data.map(each => each.embedding), plain: plain.data.map(each => each.embedding), usage: plain.usage};
  },
  async responses() {
    const answer = await openai.responses.create({model, input: messages});
    return {text: answer.output_text, status: answer.status, input: answer.usage.input_tokens, output: answer.usage.output_tokens};
  },
  async "responses-stream"() {
    const stream = openai.responses.stream({model, input: messages});
    const kinds = (await all(stream)).map(event => event.type);
    return {kinds, text: (await stream.finalResponse()).output_text};
  },
  async message() {
    const answer = await anthropic.messages.create({...ask, max_tokens: 50, system: "Be brief"});
    return {content: answer.content, reason: answer.stop_reason, usage: answer.usage, request: answer._request_id};
  },
  async "message-stream"() {
    const stream = anthropic.messages.stream({...ask, max_tokens: 50});
    const texts = [];
    stream.on("text", text => texts.push(text));
    const final = await stream.finalMessage();
    return {texts, content: final.content, reason: final.stop_reason, output: final.usage.output_tokens};
  },
  count: async () => (await anthropic.messages.countTokens(ask)).input_tokens,
  "bad-message": () => error(anthropic.messages.create({...ask, max_tokens: 50, temperature: 9})),
  "ai-compatible": async () => told(await generateText({model: compatible(model), messages, maxRetries: 0})),
  "ai-compatible-stream": () => streamed(compatible(model)),
  "ai-compatible-bad": () => error(generateText({model: compatible("none"), messages, maxRetries: 0})),
  "ai-openai-chat": async () => told(await generateText({model: createOpenAI({baseURL, apiKey}).chat(model), messages, maxRetries: 0})),
  "ai-openai-chat-stream": () => streamed(createOpenAI({baseURL, apiKey}).chat(model)),
  "ai-openai-responses": async () => told(await generateText({model: createOpenAI({baseURL, apiKey}).responses(model), messages, maxRetries: 0})),
  "ai-openai-responses-stream": () => streamed(createOpenAI({baseURL, apiKey}).responses(model)),
  "ai-anthropic": async () => told(await generateText({model: createAnthropic({baseURL, apiKey})(model), messages, maxRetries: 0})),
  "ai-anthropic-stream": () => streamed(createAnthropic({baseURL, apiKey})(model)),
  async "ai-embeddings"() {
    const {embeddings} = await embedMany({model: compatible.textEmbeddingModel(model), values: ["one", "two"], maxRetries: 0});
    return embeddings;
  },
};

const results = {};
for (const name of names) {
  const failed = await error((async () => { results[name] = await CALLS[name](); })());
  if (failed) results[name] = {failed};
}
console.log(JSON.stringify(results));

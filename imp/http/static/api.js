/* The server, over its own public API. */

class ApiError extends Error {
  constructor(message, details, status) {
    super(message);
    this.details = details;
    this.status = status;
  }
}

function headers() {
  return {"Content-Type": "application/json", ...(store.key ? {Authorization: "Bearer " + store.key} : {})};
}

/** fetch, whose refusals are ApiErrors in the server's words. */
async function ask(path, options = {}) {
  let response;
  try {
    response = await fetch(path, {...options, headers: headers()});
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The server cannot be reached.", "", 0);
  }
  if (response.ok) return response;
  const error = (await response.json().catch(() => null))?.error;
  const where = [error?.param && `field ${error.param}`, error?.code, `status ${response.status}`].filter(Boolean).join(" · ");
  throw new ApiError(error?.message ?? `The server answered with status ${response.status}.`, where, response.status);
}

const models = async () => (await (await ask("v1/models")).json()).data;
const metricsText = async () => (await ask("metrics")).text();

/** The JSON values of an event stream. Throws an ApiError for one that reports a failure, or where the end is missing. */
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let held = "";;) {
    const {value, done} = await reader.read();
    if (done) throw new ApiError("The connection was cut before the answer was complete.", "", 0);
    const parts = (held + value).split("\n\n");
    held = parts.pop();
    for (const part of parts) {
      const data = part.split("\n").filter(line => line.startsWith("data:")).map(line => line.slice(5).trimStart()).join("\n");
      if (data === "[DONE]") return;
      if (!data) continue;
      const event = JSON.parse(data);
      if (event.error) throw new ApiError(event.error.message, event.error.code ?? "", 200);
      yield event;
    }
  }
}

/** A chat's messages as the API takes them; answers that never came are left out. */
function apiMessages(chat) {
  const system = (chat.settings.system ?? "").trim();
  const out = system ? [{role: "system", content: system}] : [];
  for (const message of chat.messages) {
    const {role, content, reasoning, tool_calls, tool_call_id} = message;
    if (role === "tool") out.push({role, content, tool_call_id});
    else if (role === "user" || content || tool_calls)
      out.push({role, content: content || null, ...(reasoning && {reasoning_content: reasoning}), ...(tool_calls && {tool_calls})});
  }
  return out;
}

/** Streams the answer to `chat`, or the rest of its last one; `take(event)` gets each chunk. */
async function complete(chat, goesOn, signal, take) {
  const body = {...(chat.settings.model && {model: chat.settings.model}), messages: apiMessages(chat), ...requestFields(chat.settings),
                ...(goesOn && {continue_final_message: true, add_generation_prompt: false}), stream: true, stream_options: {include_usage: true, continuous_usage_stats: true}};
  const response = await ask("v1/chat/completions", {method: "POST", signal, body: JSON.stringify(body)});
  for await (const event of events(response)) take(event);
}

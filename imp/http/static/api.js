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

/** The data of each event of a stream, by the standard's rules: any line end, comments, several data lines. */
async function* eventData(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "", data = [];
  for (let done = false; !done;) {
    const part = await reader.read();
    done = part.done;
    const text = held + (part.value ?? ""), half = !done && text.endsWith("\r");  // of a CRLF, perhaps
    const complete = half ? text.slice(0, -1) : text;
    const lines = complete.split(/\r\n|\r|\n/);
    held = lines.pop() + text.slice(complete.length);
    for (const line of lines) {
      if (line.startsWith("data:")) data.push(line.slice(5).replace(/^ /, ""));
      if (line !== "" || !data.length) continue;
      yield data.join("\n");
      data = [];
    }
  }
}

/** The JSON values of a completion's stream. Throws an ApiError for one that reports a failure, or whose end is missing. */
async function* events(response) {
  for await (const data of eventData(response.body)) {
    if (data === "[DONE]") return;
    const event = JSON.parse(data);
    if (event.error) throw new ApiError(event.error.message, event.error.code ?? "", 200);
    yield event;
  }
  throw new ApiError("The connection was cut before the answer was complete.", "", 0);
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

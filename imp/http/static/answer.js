/* One answer that is coming: chunks in, a message out. Times are performance.now() readings, in milliseconds. */

class Answer {
  constructor(message) {
    this.message = message;
    this.began = performance.now();
    this.first = this.last = 0;
    this.chunks = 0;
    this.usage = null;
    this.reason = null;
  }

  take(event) {
    if (event.usage) this.usage = event.usage;
    const choice = event.choices?.[0];
    if (!choice) return;
    this.reason = choice.finish_reason ?? this.reason;
    const delta = choice.delta ?? {}, message = this.message;
    const reasoning = delta.reasoning_content ?? delta.reasoning;
    if (reasoning) message.reasoning = (message.reasoning ?? "") + reasoning;
    if (delta.content) message.content += delta.content;
    for (const part of delta.tool_calls ?? []) this.takeCall(part);
    if (reasoning || delta.content || delta.tool_calls) {
      this.last = performance.now();
      this.first ||= this.last;
      this.chunks += 1;
    }
  }

  takeCall(part) {
    const calls = (this.message.tool_calls ??= []);
    const call = (calls[part.index ?? calls.length] ??= {id: "", type: "function", function: {name: "", arguments: ""}});
    if (part.id) call.id = part.id;
    if (part.function?.name) call.function.name = part.function.name;
    call.function.arguments += part.function?.arguments ?? "";
  }

  /** What is told below the message. */
  note() {
    if (!this.first && !this.reason) return `waiting ${((performance.now() - this.began) / 1000).toFixed(0)} s`;
    const tokens = this.usage?.completion_tokens || this.chunks, seconds = (this.last - this.first) / 1000;
    const details = this.usage?.prompt_tokens_details, thinking = this.usage?.completion_tokens_details?.reasoning_tokens;
    return [
      tokens === 1 ? "1 token" : `${tokens} tokens`,
      thinking > 0 && `${thinking} of them thinking`,
      tokens > 2 && seconds > 0.05 && `${((tokens - 1) / seconds).toFixed(1)} tokens/s`,
      this.first && `first after ${duration(this.first - this.began)}`,
      this.usage && `${this.usage.prompt_tokens} in the prompt` + (details?.cached_tokens ? `, ${details.cached_tokens} cached` : ""),
      this.reason === "length" && "cut at the longest answer",
    ].filter(Boolean).join(" · ");
  }
}

const duration = ms => (ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`);

/* How a conversation looks: one node a message, updated in place while an answer grows. */

class MessageView {
  /** actions: what the page does for the buttons; see app.js */
  constructor(message, actions) {
    this.message = message;
    this.actions = actions;
    this.node = el("article", {class: `turn ${message.role}`, "aria-label": {user: "You", assistant: "Answer", tool: "Tool result"}[message.role]});
    this.text = el("div", {class: "text"});
    this.thought = null;
    this.calls = el("div");
    this.problem = el("div");
    this.note = el("span");
    this.more = el("button", {type: "button", onclick: () => this.actions.goOn(this.message)}, "Continue");
    this.foot = el("div", {class: "foot"}, ...this.buttons(), this.note, message.role === "assistant" && this.more);
    this.node.append(this.text, this.calls, this.problem, this.foot);
    this.update();
  }

  buttons() {
    const copying = iconButton("copy", "Copy", () => copy(this.message.content, copying));
    if (this.message.role === "user") return [copying, iconButton("edit", "Edit and send again", () => this.edit())];
    if (this.message.role === "tool") return [copying];
    return [copying, iconButton("again", "Answer again", () => this.actions.again(this.message))];
  }

  /** answer: the Answer that fills this message right now. */
  update(answer = null) {
    const {role, content, reasoning, tool_calls: calls, error, details} = this.message;
    if (role === "assistant") renderMarkdown(this.text, content);
    else this.text.textContent = content;
    if (reasoning) this.showThought(reasoning, answer && !content);
    this.calls.replaceChildren(...(calls ?? []).filter(Boolean).map(call => this.callNode(call, !answer)));
    if (answer && !content && !reasoning && !calls) this.text.replaceChildren(el("span", {class: "waiting", role: "img", "aria-label": "Waiting"}));
    if (answer && !content) this.text.shown = undefined;
    this.problem.replaceChildren(...(error ? [this.errorNode(error, details)] : []));
    this.note.textContent = answer?.note() ?? this.message.note ?? "";
    for (const button of this.foot.querySelectorAll("button")) button.hidden = Boolean(answer);
    this.more.hidden ||= !this.message.unfinished || !this.actions.isLast(this.message);
  }

  showThought(reasoning, thinking) {
    if (!this.thought) {
      this.thought = {head: el("summary"), text: el("div", {class: "text"})};
      this.thought.fold = el("details", {class: "think", open: thinking}, this.thought.head, this.thought.text);
      this.node.prepend(this.thought.fold);
      this.wasThinking = thinking;
    }
    if (this.wasThinking && !thinking) this.thought.fold.open = false;  // it gives way to the answer
    this.wasThinking = thinking;
    this.thought.head.textContent = thinking ? "Thinking …" : "Thoughts";
    renderMarkdown(this.thought.text, reasoning);
  }

  callNode(call, complete) {
    let shown = call.function.arguments;
    try {
      shown = JSON.stringify(JSON.parse(shown), null, 2);
    } catch {
      // incomplete, or not JSON at all: as it came
    }
    const node = el("div", {class: "call"}, el("h4", {}, icon("tool"), call.function.name || "…"), el("pre", {}, shown));
    if (complete && this.actions.wantsResult(call)) {
      const area = el("textarea", {placeholder: "Result of the call", "aria-label": `Result of ${call.function.name}`});
      node.append(area, el("div", {class: "row"}, el("button", {type: "button", onclick: () => this.actions.result(call, area.value)}, "Send result")));
    }
    return node;
  }

  errorNode(error, details) {
    return el("div", {class: "error", role: "alert"}, error, details && el("small", {}, details),
      el("div", {class: "row"}, el("button", {type: "button", onclick: () => this.actions.again(this.message)}, "Try again")));
  }

  edit() {
    if (this.node.classList.contains("editing")) return;
    const area = el("textarea", {"aria-label": "Edit the message"});
    area.value = this.message.content;
    const done = () => {
      this.node.classList.remove("editing");
      this.node.replaceChildren(this.text, this.calls, this.problem, this.foot);
    };
    const send = () => {
      if (area.value.trim()) this.actions.edit(this.message, area.value.trim());
    };
    area.addEventListener("keydown", event => {
      if (event.key === "Escape") { event.stopPropagation(); done(); $("input").focus(); }
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); send(); }
    });
    this.node.classList.add("editing");
    this.node.replaceChildren(area, el("div", {class: "row"}, el("button", {type: "button", onclick: done}, "Cancel"),
      el("button", {type: "button", class: "main", onclick: send}, "Send")));
    area.focus();
  }
}

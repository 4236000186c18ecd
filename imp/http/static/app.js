/* The page: which chat is open, what is running, and what buttons and keys do. */

let chats = store.chats();
let chat = chats.find(each => each.id === store.preferences().chat) ?? fresh();
let views = new Map();            // message -> MessageView, of the open chat
const runs = new Map();           // chat id -> {controller, answer}, of answers that are coming
let served = [];                  // /v1/models
const panel = new MetricsPanel($("charts"));

function fresh() {
  const {model, ...settings} = chats[0]?.settings ?? {};
  return newChat(model ? {...settings, model} : settings);
}

const modelOf = each => served.find(model => model.id === each.settings.model) ?? served.find(model => model.loaded);

// -- showing -----------------------------------------------------------------------------------------------------------

function showChat() {
  views = new Map();
  const nodes = chat.messages.map(message => {
    const view = new MessageView(message, actions);
    views.set(message, view);
    return view.node;
  });
  const greeting = el("div", {class: "empty"}, el("strong", {}, "What is on your mind?"),
    "Conversations stay in this browser; messages go to this server alone.");
  $("log").replaceChildren(...(nodes.length ? nodes : [greeting]));
  const run = runs.get(chat.id);
  if (run) views.get(run.answer.message)?.update(run.answer);
  showState();
  showList();
  fillSettings(chat.settings, modelOf(chat));
  $("scroll").scrollTop = $("scroll").scrollHeight;
}

function showList() {
  showChats(chats, chat, each => runs.has(each.id), {
    open(each) {
      openChat(each);
      document.body.classList.remove("menu");
    },
    rename(each, title) {
      each.title = title;
      store.save(each);
      showList();
    },
    remove: removeChat,
  });
}

function showState() {
  const busy = runs.has(chat.id);
  $("go").querySelector("use").setAttribute("href", busy ? "#i-stop" : "#i-send");
  $("go").setAttribute("aria-label", busy ? "Stop" : "Send");
  $("go").title = busy ? "Stop (Esc)" : "Send (Enter)";
  const model = modelOf(chat), used = chat.used;
  $("use").textContent = used && model?.max_model_len ? `${used} of ${model.max_model_len} tokens of the context used` : "";
  document.title = chat.messages.length ? `${titleOf(chat).slice(0, 60)} – imp-server` : "imp-server";
}

const nearBottom = () => $("scroll").scrollHeight - $("scroll").scrollTop - $("scroll").clientHeight < 100;

function append(message) {
  chat.messages.push(message);
  if (chat.messages.length === 1) $("log").replaceChildren();
  views.get(chat.messages.at(-2))?.update();
  const view = new MessageView(message, actions);
  views.set(message, view);
  $("log").append(view.node);
  $("scroll").scrollTop = $("scroll").scrollHeight;
  return view;
}

// -- chats -------------------------------------------------------------------------------------------------------------

function openChat(other) {
  chat = other;
  store.prefer({chat: chat.id});
  showChat();
}

function startChat() {
  document.body.classList.remove("menu");
  if (chat.messages.length) openChat(newChat(chat.settings));
  $("input").focus();
}

function keep(each) {
  each.updated = Date.now();
  chats = [each, ...chats.filter(other => other.id !== each.id)];
  store.save(each);
  if (each === chat) store.prefer({chat: chat.id});
}

function removeChat(each) {
  runs.get(each.id)?.controller.abort();
  store.remove(each);
  chats = chats.filter(other => other.id !== each.id);
  if (each.id === chat.id) openChat(newChat(chat.settings));
  else showList();
  toast("Deleted", "Undo", () => {
    store.save(each);
    chats = store.chats();
    openChat(chats.find(other => other.id === each.id));
  });
}

async function importFile(file) {
  try {
    const found = readExport(await file.text());
    for (const each of found) {
      if (runs.has(each.id)) each.id = newChat({}).id;
      store.save(each);
    }
    chats = store.chats();
    openChat(chats.find(each => each.id === found[0].id) ?? chat);
    toast(`Imported ${found.length} ${found.length === 1 ? "chat" : "chats"}`);
  } catch (error) {
    toast(`Nothing was imported: ${error.message}`);
  }
}

// -- answers -----------------------------------------------------------------------------------------------------------

const actions = {
  edit(message, text) {
    cutAt(message);
    send(text);
  },
  again(message) {
    if (message.role === "assistant") cutAt(message);
    run();
  },
  goOn: message => run(message),
  isLast: message => chat.messages.at(-1) === message,
  wantsResult: call => chat.messages.at(-1)?.tool_calls?.includes(call)
    || (chat.messages.at(-1)?.role === "tool" && !chat.messages.some(each => each.tool_call_id === call.id)),
  result(call, text) {
    append({role: "tool", content: text, tool_call_id: call.id});
    const asking = chat.messages.findLast(each => each.tool_calls);
    const open = asking.tool_calls.some(each => !chat.messages.some(other => other.tool_call_id === each.id));
    keep(chat);
    showChat();
    if (!open) run();
  },
};

/** Takes `message` and everything after it away. */
function cutAt(message) {
  runs.get(chat.id)?.controller.abort();
  runs.delete(chat.id);
  chat.messages.splice(chat.messages.indexOf(message));
  showChat();
}

function send(text) {
  append({role: "user", content: text});
  run();
}

/** Lets the model answer, or go on with an answer that was cut. */
async function run(unfinished = null) {
  const mine = chat, message = unfinished ?? {role: "assistant", content: ""};
  const answer = new Answer(message), controller = new AbortController(), current = {controller, answer};
  runs.set(mine.id, current);
  if (!unfinished) append(message);
  delete message.error;
  delete message.unfinished;
  keep(mine);
  let drawn = 0, saved = performance.now();
  const draw = () => {
    drawn = 0;
    if (mine !== chat) return;
    const follow = nearBottom();
    views.get(message)?.update(runs.get(mine.id) === current ? answer : null);
    if (follow) $("scroll").scrollTop = $("scroll").scrollHeight;
  };
  const redraw = () => (drawn ||= requestAnimationFrame(draw));
  const clock = setInterval(redraw, 1000);
  redraw();
  showState();
  showList();
  try {
    await complete(mine, unfinished !== null, controller.signal, event => {
      answer.take(event);
      redraw();
      if (performance.now() - saved > 2000) {
        saved = performance.now();
        keep(mine);
      }
    });
    message.note = answer.note();
    if (answer.reason === "length") message.unfinished = true;
    announce(`The answer is complete: ${message.content.slice(0, 400)}`);
  } catch (error) {
    message.unfinished = Boolean(message.content) && !message.tool_calls;
    if (error.name === "AbortError") message.note = `${answer.first ? answer.note() + " · " : ""}stopped`;
    else failed(message, error, answer);
  }
  clearInterval(clock);
  if (runs.get(mine.id) === current) runs.delete(mine.id);
  if (answer.usage) mine.used = answer.usage.prompt_tokens + answer.usage.completion_tokens;
  if (chats.some(each => each.id === mine.id) && mine.messages.includes(message)) keep(mine);
  draw();
  showState();
  showList();
}

function failed(message, error, answer) {
  message.error = error.message;
  message.details = error.details ?? "";
  message.note = answer.first ? answer.note() : "";
  announce(`Error: ${error.message}`);
  if (error.status !== 401) return;
  show("settings", true);
  $("key").focus();
}

const stop = () => runs.get(chat.id)?.controller.abort();

// -- panels, models, theme ---------------------------------------------------------------------------------------------

function show(name, open) {
  for (const each of ["settings", "metrics"]) {
    const visible = each === name && open;
    $(each).hidden = !visible;
    $("show-" + each).setAttribute("aria-expanded", String(visible));
  }
  if (name === "metrics" && open) panel.open();
  else panel.close();
}

async function readModels() {
  let again = 0;
  try {
    served = await models();
    const loaded = served.find(each => each.loaded);
    $("model").replaceChildren(...served.map(each => el("option", {value: each.id}, each.id + (each.loaded ? "" : " (not loaded)"))));
    if (!served.length) $("model").append(el("option", {value: ""}, "no model"));
    if (!loaded) again = 2000;
  } catch (error) {
    $("model").replaceChildren(el("option", {value: ""}, error.status === 401 ? "an API key is needed" : error.message));
    again = error.status === 401 ? 0 : 3000;
  }
  showModel();
  if (again) setTimeout(readModels, again);
}

function showModel() {
  const model = modelOf(chat);
  $("model").value = model?.id ?? $("model").value;
  const quant = model?.meta?.quant && model.meta.quant !== "none" ? `${model.meta.quant} · ` : "";
  const size = model?.meta?.n_params ? `${(model.meta.n_params / 1e6).toFixed(0)}M · ` : "";
  $("about").textContent = model?.loaded ? `${size}${quant}${model.max_model_len} tokens` : "";
  fillSettings(chat.settings, model);
  showState();
}

const THEMES = {auto: "light", light: "dark", dark: "auto"};
function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  $("theme").setAttribute("aria-label", `Theme: ${theme}`);
  $("theme").title = `Theme: ${theme}`;
  store.prefer({theme});
}

// -- wiring ------------------------------------------------------------------------------------------------------------

function grow() {
  $("input").style.height = "auto";
  $("input").style.height = `${$("input").scrollHeight}px`;
}

function submit() {
  const text = $("input").value.trim();
  if (runs.has(chat.id)) return stop();
  if (!text) return;
  $("input").value = "";
  grow();
  send(text);
}

function editLast() {
  const last = chat.messages.findLast(each => each.role === "user");
  if (last && !runs.has(chat.id)) views.get(last).edit();
}

$("form").addEventListener("submit", event => { event.preventDefault(); submit(); });
$("input").addEventListener("input", grow);
$("input").addEventListener("keydown", event => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    if (!runs.has(chat.id)) submit();
  }
  if (event.key === "ArrowUp" && !$("input").value) { event.preventDefault(); editLast(); }
});
document.addEventListener("keydown", event => {
  if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") { event.preventDefault(); startChat(); }
  if (event.key !== "Escape") return;
  const open = ["settings", "metrics"].find(name => !$(name).hidden);
  if (runs.has(chat.id)) stop();
  else if (document.body.classList.contains("menu")) document.body.classList.remove("menu");
  else if (open) { show(open, false); $("show-" + open).focus(); }
});
$("new").addEventListener("click", startChat);
$("menu").addEventListener("click", () => { document.body.classList.add("menu"); $("new").focus(); });
$("shade").addEventListener("click", () => document.body.classList.remove("menu"));
$("theme").addEventListener("click", () => setTheme(THEMES[document.documentElement.dataset.theme]));
for (const name of ["settings", "metrics"]) $("show-" + name).addEventListener("click", () => show(name, $(name).hidden));
for (const button of document.querySelectorAll("[data-close]")) button.addEventListener("click", () => {
  document.body.classList.remove("menu");
  show(button.dataset.close, false);
});
$("export").addEventListener("click", () => download("imp-chats.json", {version: 1, chats: store.chats()}));
$("import").addEventListener("click", () => $("file").click());
$("file").addEventListener("change", async () => {
  if ($("file").files[0]) await importFile($("file").files[0]);
  $("file").value = "";
});
$("model").addEventListener("change", () => {
  chat.settings.model = $("model").value;
  if (chat.messages.length) keep(chat);
  showModel();
});
$("scroll").addEventListener("scroll", () => { $("bottom").hidden = nearBottom(); });
$("bottom").addEventListener("click", () => { $("scroll").scrollTop = $("scroll").scrollHeight; });
addEventListener("pagehide", () => { for (const each of chats) if (runs.has(each.id)) store.save(each); });
addEventListener("storage", event => {  // another tab
  if (!event.key?.startsWith("imp.chat.") || runs.size) return;
  chats = store.chats();
  chat = chats.find(each => each.id === chat.id) ?? (chat.messages.length ? newChat(chat.settings) : chat);
  showChat();
});

$("fields").append(...settingsForm((name, value) => {
  if (value === "") delete chat.settings[name];
  else chat.settings[name] = value;
  if (chat.messages.length) keep(chat);
}), el("details", {open: true}, el("summary", {}, "Access"), el("form", {onsubmit: event => event.preventDefault()},
  el("label", {}, el("span", {}, "API key"),
    el("input", {id: "key", type: "password", autocomplete: "off", placeholder: "only where the server asks for one"})),
  el("p", {class: "note"}, "Kept until this tab is closed."))));
$("key").value = store.key;
$("key").addEventListener("change", () => { store.key = $("key").value.trim(); readModels(); });
setTheme(store.preferences().theme in THEMES ? store.preferences().theme : "auto");
showChat();
readModels();

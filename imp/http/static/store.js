/* Conversations, kept in this browser alone: one entry of localStorage each, so that tabs do not undo each other. */

const CHAT = "imp.chat.", PREFERENCES = "imp.preferences", KEY = "imp.key";
const ROLES = ["user", "assistant", "tool"];
const MAX_CHATS = 10_000;

const newChat = settings =>
  ({id: crypto.randomUUID?.() ?? `${Date.now()}-${Math.random()}`, title: "", created: Date.now(), updated: Date.now(),
    settings: {...settings}, messages: []});

const text = value => (typeof value === "string" ? value : "");

/** A chat made of what `value` holds of one, whoever wrote it; null where that is nothing. */
function readChat(value) {
  if (typeof value !== "object" || value === null || !Array.isArray(value.messages)) return null;
  const chat = newChat({});
  if (/^[\w.-]{1,80}$/.test(value.id)) chat.id = value.id;
  chat.title = text(value.title).slice(0, 200);
  for (const name of ["created", "updated", "used"]) if (Number.isFinite(value[name])) chat[name] = value[name];
  for (const [name, setting] of Object.entries(value.settings ?? {}))
    if (FIELD_NAMES.has(name) && ["string", "number", "boolean"].includes(typeof setting)) chat.settings[name] = String(setting);
  chat.messages = value.messages.filter(each => each && ROLES.includes(each.role)).map(readMessage);
  return chat;
}

function readMessage(value) {
  const message = {role: value.role, content: text(value.content)};
  for (const name of ["reasoning", "tool_call_id", "error", "details", "note"]) if (text(value[name])) message[name] = value[name];
  if (value.unfinished === true) message.unfinished = true;
  if (Array.isArray(value.tool_calls))
    message.tool_calls = value.tool_calls.filter(call => call && typeof call === "object").map(call => ({
      id: text(call.id), type: "function",
      function: {name: text(call.function?.name), arguments: text(call.function?.arguments)}}));
  return message;
}

const store = {
  /** All chats, the one changed last first. */
  chats() {
    const found = Object.keys(localStorage).filter(key => key.startsWith(CHAT)).map(key => {
      try {
        return readChat(JSON.parse(localStorage[key]));
      } catch {
        return null;
      }
    });
    return found.filter(Boolean).sort((a, b) => b.updated - a.updated);
  },
  save(chat) {
    try {
      localStorage.setItem(CHAT + chat.id, JSON.stringify(chat));
    } catch {
      toast("The browser's storage is full: this chat is not kept. Delete or export some.");
    }
  },
  remove(chat) {
    localStorage.removeItem(CHAT + chat.id);
  },
  preferences() {
    try {
      return JSON.parse(localStorage.getItem(PREFERENCES)) ?? {};
    } catch {
      return {};
    }
  },
  prefer(changes) {
    localStorage.setItem(PREFERENCES, JSON.stringify({...store.preferences(), ...changes}));
  },
  // the key is forgotten with the tab
  get key() {
    return sessionStorage.getItem(KEY) ?? "";
  },
  set key(value) {
    sessionStorage.setItem(KEY, value);
  },
};

/** The chats in an exported file's text. Throws an Error that says what is wrong. */
function readExport(content) {
  let value;
  try {
    value = JSON.parse(content);
  } catch {
    throw new Error("the file is not JSON");
  }
  const list = Array.isArray(value) ? value : value?.chats ?? (value?.messages ? [value] : null);
  if (!Array.isArray(list)) throw new Error('the file has no "chats"');
  const chats = list.slice(0, MAX_CHATS).map(readChat).filter(Boolean);
  if (!chats.length) throw new Error("the file holds no conversation");
  return chats;
}

/** Hands the browser a file. */
function download(name, value) {
  const address = URL.createObjectURL(new Blob([JSON.stringify(value, null, 2)], {type: "application/json"}));
  el("a", {href: address, download: name}).click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

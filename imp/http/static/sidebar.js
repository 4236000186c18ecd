/* The list of conversations. */

const DAY = 86_400_000;

/** Under which heading a chat stands. */
function age(updated) {
  const today = new Date().setHours(0, 0, 0, 0);
  return updated >= today ? "Today" : updated >= today - DAY ? "Yesterday" : updated >= today - 7 * DAY ? "This week" : "Older";
}

const titleOf = chat => chat.title || chat.messages.find(each => each.role === "user")?.content.slice(0, 80) || "New chat";

/** actions: open(chat), rename(chat, title), remove(chat) */
function showChats(chats, current, busy, actions) {
  const nodes = [];
  let heading = "";
  for (const chat of chats) {
    if (age(chat.updated) !== heading) nodes.push(el("h3", {}, heading = age(chat.updated)));
    nodes.push(chatNode(chat, chat.id === current.id, busy(chat), actions));
  }
  $("chats").replaceChildren(...nodes);
}

function chatNode(chat, isCurrent, isBusy, actions) {
  const title = titleOf(chat);
  const open = el("button", {type: "button", class: "open", title, "aria-current": isCurrent ? "page" : null, onclick: () => actions.open(chat)}, title);
  const node = el("div", {class: `chat${isCurrent ? " current" : ""}${isBusy ? " busy" : ""}`}, open,
    iconButton("edit", `Rename ${title}`, () => rename(node, chat, title, actions)),
    iconButton("bin", `Delete ${title}`, () => actions.remove(chat)));
  return node;
}

function rename(node, chat, title, actions) {
  const input = el("input", {"aria-label": "Name of the chat", maxlength: "200"});
  let over = false;
  const end = keep => {
    if (over) return;
    over = true;
    actions.rename(chat, keep ? input.value.trim() : chat.title);
  };
  input.value = title;
  input.addEventListener("keydown", event => {
    if (event.key === "Enter") end(true);
    if (event.key === "Escape") { event.stopPropagation(); end(false); }
  });
  input.addEventListener("blur", () => end(true));
  node.replaceChildren(input);
  input.focus();
  input.select();
}

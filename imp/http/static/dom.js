/* Elements without HTML: everything shown is built of nodes and texts, so nothing a model says can become markup. */

const $ = id => document.getElementById(id);

/** An element; attributes that start with "on" are listeners, true is an empty attribute, false and null none. */
function el(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (value === true) node.setAttribute(key, "");
    else if (value !== false && value != null) node.setAttribute(key, value);
  }
  node.append(...children.filter(child => child != null && child !== false));
  return node;
}

function svg(name, attributes, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

const icon = name => svg("svg", {class: "i", "aria-hidden": "true"}, svg("use", {href: "#i-" + name}));

const iconButton = (name, label, onclick) =>
  el("button", {type: "button", class: "icon", title: label, "aria-label": label, onclick}, icon(name));

/** Says something to screen readers. */
function announce(text) {
  $("status").textContent = text;
}

let toastTimer = 0;
/** A short note at the bottom, with an action if there is one. */
function toast(text, action = null, act = null) {
  clearTimeout(toastTimer);
  const button = action && el("button", {type: "button", onclick: () => { $("toast").hidden = true; act(); }}, action);
  $("toast").replaceChildren(text, ...(button ? [button] : []));
  $("toast").hidden = false;
  toastTimer = setTimeout(() => { $("toast").hidden = true; }, 7000);
}

/** Copies a text; the clipboard API is missing where the page came over plain http from another machine. */
async function copy(text, button) {
  try {
    if (navigator.clipboard) await navigator.clipboard.writeText(text);
    else copyBySelection(text);
  } catch {
    toast("The browser does not allow copying");
    return;
  }
  const use = button.querySelector("use"), before = use.getAttribute("href");
  use.setAttribute("href", "#i-check");
  announce("Copied");
  setTimeout(() => use.setAttribute("href", before === "#i-check" ? "#i-copy" : before), 1500);
}

function copyBySelection(text) {
  const area = el("textarea", {class: "hidden"});
  area.value = text;
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  if (!done) throw new Error("refused");
}

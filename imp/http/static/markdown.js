/* Markdown as models write it, into nodes. Blocks are found line by line, then texts inside them; linear but for small
   constants, and bounded in depth, since the text may be anything. Links go to http, https and mailto only; images are
   shown as links, for the page loads nothing from anywhere. */

const MAX_DEPTH = 8;
const FENCE = /^ {0,3}(`{3,}|~{3,}(?!~))([^`]*)$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])(?:\s+|$)(.*)$/;

/** The blocks of a text: {kind, ...} values that compare by their JSON. */
function blocksOf(text, depth = 0) {
  const lines = text.replaceAll("\r\n", "\n").replaceAll("\t", "    ").split("\n");
  const blocks = [];
  for (let at = 0; at < lines.length;) {
    const line = lines[at];
    const reader = line.trim() === "" ? null : READERS.find(each => each.begins(line, lines[at + 1], depth));
    if (reader) {
      const [block, next] = reader.read(lines, at, depth);
      blocks.push(block);
      at = next;
    } else at += 1;
  }
  return blocks;
}

const startsBlock = (line, next, depth) =>
  READERS.some(each => each !== PARAGRAPH && each.begins(line, next, depth));

const PARAGRAPH = {
  begins: () => true,
  read(lines, at, depth) {
    let end = at + 1;
    while (end < lines.length && lines[end].trim() !== "" && !startsBlock(lines[end], lines[end + 1], depth)) end += 1;
    return [{kind: "p", text: lines.slice(at, end).join("\n").trim()}, end];
  },
};

const READERS = [
  {  // fenced code; an open fence runs to the end of what has come so far
    begins: line => FENCE.test(line),
    read(lines, at) {
      const [, fence, info] = FENCE.exec(lines[at]), language = info.trim().split(/\s/)[0];
      let end = at + 1;
      const closes = line => line.trim().startsWith(fence) && line.trim().replaceAll(fence[0], "") === "";
      while (end < lines.length && !closes(lines[end])) end += 1;
      return [{kind: "code", language, text: lines.slice(at + 1, end).join("\n")}, end + 1];
    },
  },
  {
    begins: line => /^ {0,3}#{1,6}\s/.test(line),
    read(lines, at) {
      const [, marks, text] = /^ {0,3}(#{1,6})\s+(.*)$/.exec(lines[at] + " ");
      return [{kind: "h", level: marks.length, text: text.trim().replace(/ #+$/, "")}, at + 1];
    },
  },
  {
    begins: line => /^ {0,3}(?:(?:\* *){3,}|(?:- *){3,}|(?:_ *){3,})$/.test(line),
    read: (lines, at) => [{kind: "hr"}, at + 1],
  },
  {
    begins: (line, next, depth) => /^ {0,3}>/.test(line) && depth < MAX_DEPTH,
    read(lines, at, depth) {
      let end = at;
      while (end < lines.length && /^ {0,3}>/.test(lines[end])) end += 1;
      const inner = lines.slice(at, end).map(line => line.replace(/^ {0,3}> ?/, "")).join("\n");
      return [{kind: "quote", blocks: blocksOf(inner, depth + 1)}, end];
    },
  },
  {
    begins: (line, next, depth) => ITEM.test(line) && depth < MAX_DEPTH,
    read: readList,
  },
  {
    begins: (line, next) => line.includes("|") && next !== undefined && next.includes("-")
      && cells(next).every(cell => /^:?-+:?$/.test(cell)) && cells(line).length === cells(next).length,
    read(lines, at) {
      let end = at + 2;
      while (end < lines.length && lines[end].includes("|")) end += 1;
      const align = cells(lines[at + 1]).map(rule => (rule.endsWith(":") ? (rule.startsWith(":") ? "center" : "right") : ""));
      return [{kind: "table", align, rows: [lines[at], ...lines.slice(at + 2, end)].map(cells)}, end];
    },
  },
  PARAGRAPH,
];

function readList(lines, at, depth) {
  const [, indent, mark] = ITEM.exec(lines[at]);
  const ordered = /\d/.test(mark), items = [];
  let end = at;
  while (end < lines.length) {
    const found = ITEM.exec(lines[end]);
    if (found && found[1].length <= indent.length + 1) {
      if (/\d/.test(found[2]) !== ordered) break;
      items.push({lines: [found[3]], inner: found[1].length + found[2].length + 1});
    } else {
      const item = items.at(-1), line = lines[end], lead = line.length - line.trimStart().length;
      const blank = line.trim() === "", after = item.lines.at(-1).trim() === "";
      if (!blank && lead < Math.min(item.inner, 2) && (after || startsBlock(line, lines[end + 1], depth))) break;
      item.lines.push(line.slice(Math.min(lead, item.inner)));
    }
    end += 1;
  }
  const blocks = items.map(item => blocksOf(item.lines.join("\n"), depth + 1));
  return [{kind: "list", ordered, start: ordered ? parseInt(mark, 10) : 1, items: blocks}, end];
}

const cells = line => line.trim().replace(/^\||\|$/g, "").split("|").map(cell => cell.trim());

/** Shows `text` in `element`; blocks that are as they were stay, so that a growing text costs what is new. */
function renderMarkdown(element, text) {
  const blocks = blocksOf(text), before = element.shown ?? [], now = blocks.map(block => JSON.stringify(block));
  let same = 0;
  while (same < now.length && before[same] === now[same]) same += 1;
  while (element.childNodes.length > same) element.lastChild.remove();
  element.append(...blocks.slice(same).map(block => nodeOf(block)));
  element.shown = now;
}

const nodeOf = block => NODES[block.kind](block);

const NODES = {
  p: block => el("p", {}, ...inline(block.text)),
  h: block => el("h" + block.level, {}, ...inline(block.text)),
  hr: () => el("hr"),
  quote: block => el("blockquote", {}, ...block.blocks.map(nodeOf)),
  list: block => el(block.ordered ? "ol" : "ul", block.start === 1 ? {} : {start: block.start}, ...block.items.map(item =>
    el("li", {}, ...(item.length && item[0].kind === "p" ? [...inline(item[0].text), ...item.slice(1).map(nodeOf)]
      : item.map(nodeOf))))),
  table(block) {
    const [head, ...rows] = block.rows;
    const row = (kind, texts) => el("tr", {}, ...head.map((_, i) =>
      el(kind, {class: block.align[i] || null}, ...inline(texts[i] ?? ""))));
    return el("div", {class: "table"}, el("table", {}, el("thead", {}, row("th", head)),
      el("tbody", {}, ...rows.map(texts => row("td", texts)))));
  },
  code(block) {
    const button = el("button", {type: "button", "aria-label": "Copy code", onclick: () => copy(block.text, button)},
      icon("copy"), "Copy");
    return el("div", {class: "code"}, el("div", {}, el("span", {}, block.language || "text"), button),
      el("pre", {tabindex: "0"}, el("code", {}, ...highlight(block.text, block.language))));
  },
};

const SPECIAL = /[\n`*_~[!h]/;

/** The nodes of a text: code, emphasis, links, line breaks. */
function inline(text, depth = 0) {
  const out = [];
  const none = new Set();  // closing marks known not to come any more
  let plain = "";
  const push = node => {
    if (plain) out.push(plain);
    plain = "";
    out.push(node);
  };
  const closing = (mark, from) => {
    if (none.has(mark)) return -1;
    const at = text.indexOf(mark, from);
    if (at < 0) none.add(mark);
    return at;
  };
  for (let at = 0; at < text.length;) {
    let found = null;
    if (SPECIAL.test(text[at])) for (const read of INLINE) if ((found = read(text, at, closing, depth))) break;
    if (found) {
      push(found.node);
      at = found.next;
    } else if (text[at] === "\\" && /[\\`*_{}[\]()#+\-.!~|<>]/.test(text[at + 1] ?? "")) {
      plain += text[at + 1];
      at += 2;
    } else plain += text[at++];
  }
  if (plain) out.push(plain);
  return out;
}

const word = char => char !== undefined && /[\p{L}\p{N}]/u.test(char);

function emphasis(mark, name) {
  return (text, at, closing, depth) => {
    if (!text.startsWith(mark, at) || depth >= MAX_DEPTH || /\s|^$/.test(text[at + mark.length] ?? "")) return null;
    if (mark[0] === "_" && word(text[at - 1])) return null;
    let end = closing(mark, at + mark.length + 1);
    if (mark.length === 1) {  // pairs belong to a longer mark inside
      while (end >= 0 && text[end + 1] === mark && text[end + 2] !== mark) end = text.indexOf(mark, end + 2);
      if (end >= 0 && text[end + 1] === mark) end += 2;
    }
    if (end < 0 || /\s/.test(text[end - 1]) || (mark[0] === "_" && word(text[end + mark.length]))) return null;
    return {node: el(name, {}, ...inline(text.slice(at + mark.length, end), depth + 1)), next: end + mark.length};
  };
}

function codeSpan(text, at, closing) {
  if (text[at] !== "`" || text[at - 1] === "`") return null;
  let size = 1;
  while (text[at + size] === "`") size += 1;
  const mark = "`".repeat(size), end = closing(mark, at + size);
  if (end < 0) return null;
  const inner = text.slice(at + size, end);
  return {node: el("code", {}, inner.length > 2 && inner[0] === " " && inner.at(-1) === " " ? inner.slice(1, -1) : inner),
          next: end + size};
}

/** A link, or null for an address that is not plainly one of the web's. */
function link(address, ...children) {
  if (!/^(?:https?:\/\/|mailto:)[^\s]+$/i.test(address)) return null;
  return el("a", {href: address, target: "_blank", rel: "noopener noreferrer nofollow"}, ...children);
}

function bracketed(text, at, _, depth) {
  const start = text[at] === "!" && text[at + 1] === "[" ? at + 1 : at;
  if (text[start] !== "[" || depth >= MAX_DEPTH) return null;
  const size = text.slice(start, start + 1000).indexOf("]("), middle = start + size;
  if (size < 0) return null;
  const end = text.slice(middle, middle + 2000).indexOf(")");
  if (end < 0) return null;
  const address = text.slice(middle + 2, middle + end).trim().split(/\s/)[0];
  const node = link(address, ...inline(text.slice(start + 1, middle) || address, MAX_DEPTH));
  return node && {node, next: middle + end + 1};
}

const ADDRESS = /https?:\/\/[^\s<>"'`)\]}]+/y;
function bareAddress(text, at) {
  if (text[at] !== "h" || word(text[at - 1])) return null;
  ADDRESS.lastIndex = at;
  let address = ADDRESS.exec(text)?.[0] ?? "";
  while (/[.,;:!?*_~]/.test(address.at(-1) ?? "")) address = address.slice(0, -1);
  const node = address && link(address, address);
  return node && {node, next: at + address.length};
}

const lineBreak = (text, at) => (text[at] === "\n" ? {node: el("br"), next: at + 1} : null);

const INLINE = [lineBreak, codeSpan, emphasis("**", "strong"), emphasis("__", "strong"), emphasis("*", "em"),
                emphasis("_", "em"), emphasis("~~", "s"), bracketed, bareAddress];

/* Colours for code in any language: strings, comments, numbers and the words most languages share. */
const KEYWORDS = new Set(("abstract and as async await base bool break case catch char class const continue def default defer del delete do "
  + "elif else end enum except export extends extern false False final finally fn for from func function global go if impl implements import "
  + "in instanceof int interface is lambda let long loop match mod module mut namespace new nil None nonlocal not null or package pass private "
  + "protected pub public raise return self static string struct super switch then this throw throws trait true True try type typedef typeof "
  + "unsafe until use using val var void where while with yield select insert update create table values group order by join").split(" "));
const TOKEN = /("""[^]*?(?:"""|(?![^]))|'''[^]*?(?:'''|(?![^]))|"(?:[^"\\\n]|\\.)*"?|'(?:[^'\\\n]|\\.)*'|`(?:[^`\\]|\\.)*`?)|(\/\/[^\n]*|\/\*[^]*?(?:\*\/|(?![^]))|(?<=^|\s)(?:#|--)[^\n]*|<!-{2}[^]*?(?:-->|(?![^])))|(\b(?:0x[\da-fA-F_]+|\d[\d_]*(?:\.\d+)?(?:[eE][+-]?\d+)?)\b)|([A-Za-z_]\w*)/gm;
const PLAIN = new Set(["", "text", "txt", "plain", "plaintext", "output", "console", "markdown", "md", "csv"]);

function highlight(code, language) {
  if (PLAIN.has(language.toLowerCase()) || code.length > 50_000) return [code];
  const out = [];
  let done = 0;
  for (const found of code.matchAll(TOKEN)) {
    const [all, string, comment, number, name] = found;
    const kind = string ? "s" : comment ? "c" : number ? "n" : KEYWORDS.has(name) ? "k" : null;
    if (!kind) continue;
    out.push(code.slice(done, found.index), el("span", {class: kind}, all));
    done = found.index + all.length;
  }
  out.push(code.slice(done));
  return out;
}

"use strict";

// Texts of models become markup here, and nowhere else: markdown-it writes no HTML of the text's own,
// KaTeX writes MathML, and DOMPurify takes out whatever else there is.

const MATH = [
  // opening, closing, whether it stands on lines of its own
  ["$$", "$$", true], ["\\[", "\\]", true], ["\\(", "\\)", false], ["$", "$", false],
];
const KATEX = { output: "mathml", throwOnError: false, trust: false, strict: "ignore", maxSize: 20, maxExpand: 500 };
const SAFE = {
  USE_PROFILES: { html: true, mathMl: true }, FORBID_ATTR: ["style", "id", "name"],
  FORBID_TAGS: ["style", "img", "form", "input", "button", "textarea", "select", "video", "audio", "picture"],
  RETURN_DOM_FRAGMENT: true,
};

// A dollar is money where a blank follows, or where a digit follows the closing one.
function closingOf(text, at, [open, close]) {
  const from = at + open.length;
  let end = text.indexOf(close, from);
  while (end > 0 && text[end - 1] === "\\" && close[0] === "$") end = text.indexOf(close, end + 1);
  if (end <= from) return -1;
  const money = open === "$" && (/\s/.test(text[from]) || /\s/.test(text[end - 1]) ||
    /\d/.test(text[end + 1] ?? "") || text.slice(from, end).includes("\n\n"));
  return money ? -1 : end;
}

function mathRule(state, silent) {
  const kind = MATH.find(([open]) => state.src.startsWith(open, state.pos));
  if (!kind) return false;
  const end = closingOf(state.src, state.pos, kind);
  if (end < 0 || end > state.posMax) return false;
  if (!silent) {
    const token = state.push("math", "math", 0);
    token.content = state.src.slice(state.pos + kind[0].length, end);
    token.meta = { display: kind[2] };
  }
  state.pos = end + kind[1].length;
  return true;
}

function math(tokens, at) {
  const { content, meta } = tokens[at];
  const made = katex.renderToString(content, { ...KATEX, displayMode: meta.display });
  // The source that KaTeX adds would be shown twice where its element is taken out.
  return made.replace(/<annotation[^]*?<\/annotation>/g, "").replace(/<\/?semantics>/g, "");
}

// The policy of the page allows no styles: columns are aligned by an attribute.
function cell(tokens, at, options, _, renderer) {
  const token = tokens[at];
  const style = token.attrGet("style");
  if (style) {
    token.attrs = token.attrs.filter(([name]) => name !== "style");
    token.attrSet("align", style.replace("text-align:", ""));
  }
  return renderer.renderToken(tokens, at, options);
}

const md = markdownit({ html: false, linkify: true, breaks: true });
md.disable("image");
md.inline.ruler.before("escape", "math", mathRule);
md.renderer.rules.math = math;
md.renderer.rules.th_open = cell;
md.renderer.rules.td_open = cell;

// Returns nodes for a text in Markdown; `copyButton` makes the button of a block of code.
function rendered(text, copyButton) {
  const made = DOMPurify.sanitize(md.render(text), SAFE);
  for (const link of made.querySelectorAll("a")) {
    link.target = "_blank";
    link.rel = "noopener noreferrer";
  }
  for (const pre of made.querySelectorAll("pre")) {
    const code = pre.querySelector("code");
    const language = /language-(\S+)/.exec(code?.className ?? "")?.[1] ?? "";
    const [block, head] = [element("div", "code"), element("div", "head")];
    pre.replaceWith(block);
    pre.tabIndex = 0;
    pre.setAttribute("aria-label", language ? `Code, ${language}` : "Code");
    pre.setAttribute("role", "region");
    head.append(element("span", "", language), copyButton(() => pre.textContent));
    block.append(head, pre);
  }
  for (const table of made.querySelectorAll("table")) {
    const wide = element("div", "table");
    wide.tabIndex = 0;
    wide.setAttribute("role", "region");
    wide.setAttribute("aria-label", "Table");
    table.replaceWith(wide);
    wide.append(table);
  }
  return made;
}

function element(name, kind, text) {
  const made = document.createElement(name);
  if (kind) made.className = kind;
  if (text) made.textContent = text;
  return made;
}

"use strict";

const $ = (id) => document.getElementById(id);
const settings = $("settings");
const NUMBERS = ["temperature", "top_p", "seed"];
const REMEMBERED = "cortiq-settings";
const store = new ChatStore();
let models = [];
let chat = newChat();
const attached = new Attached($("file"), $("attached"), tell);
let running = null; // { abort, done } of the answer that arrives

function button(kind, text, work, label) {
  const made = element("button", kind, text);
  made.type = "button";
  made.onclick = work;
  if (label) made.setAttribute("aria-label", label);
  return made;
}

function tell(trouble) {
  $("trouble").textContent = trouble;
  $("trouble").hidden = !trouble;
}

// ---- the server

function headers() {
  const made = { "content-type": "application/json" };
  const key = settings.elements.key.value;
  if (key) made.authorization = `Bearer ${key}`;
  return made;
}

async function refused(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return `The server answered ${response.status}.`;
  }
}

async function loadModels() {
  try {
    const response = await fetch("v1/models", { headers: headers() });
    if (!response.ok) return tell(await refused(response));
    const before = $("model").value || chat.model;
    models = (await response.json()).data;
    $("model").replaceChildren(...models.map((model) => new Option(model.id, model.id)));
    if (models.some((model) => model.id === before)) $("model").value = before;
    showModel();
    tell("");
  } catch {
    tell("The server cannot be reached.");
  }
}

const model = () => models.find((one) => one.id === $("model").value);
const isBase = () => model()?.chat === false;
const writesDown = () => model()?.transcribes === true; // as Whisper does
const longest = () => isBase() ? 256 : 1024; // as `cortiq run`

function showModel() {
  const shown = model();
  if (!shown) return;
  const there = shown.backend !== undefined;
  const kind = writesDown() ? ": it writes down what is said" : isBase() ? ", a base model: it continues texts" : "";
  attached.offer($("attach"), shown);
  $("backend").textContent = there ? `${shown.backend}, ${shown.context_length} tokens${kind}` : "loaded when it is asked";
  $("fingerprint").textContent = there ? `Fingerprint ${shown.system_fingerprint}: the same seed gives the ` +
    "same answer on every backend." : "";
  // An empty field is not sent: the server then samples as the model recommends.
  settings.elements.temperature.placeholder = shown.sampling?.temperature ?? "the model's";
  settings.elements.top_p.placeholder = shown.sampling?.top_p ?? (there ? 1 : "the model's");
  settings.elements.max_tokens.placeholder = longest();
  $("text").placeholder = writesDown() ? "Text before the sound, if any" : isBase() ? "Begin a text" : "Ask something";
}

function message(node) {
  const made = { role: node.role, content: contentOf(node) };
  if (node.calls?.length) made.tool_calls = node.calls;
  if (node.call) made.tool_call_id = node.call;
  return made;
}

// The path and body of a request for what comes after these messages.
function request(nodes, more) {
  const made = { model: $("model").value, stream: true, stream_options: { include_usage: true } };
  for (const name of NUMBERS) {
    const value = settings.elements[name].value;
    if (value !== "") made[name] = Number(value);
  }
  const most = Number(settings.elements.max_tokens.value) || longest();
  if (settings.elements.receipt.checked) made.receipt = true;
  made.loop_tokens = 96; // as `cortiq chat`
  if (isBase()) {
    made.max_tokens = most;
    return ["v1/completions", { ...made, prompt: nodes.map((node) => node.content).join("") }];
  }
  made.max_completion_tokens = most;
  if (settings.elements.tools.value.trim()) made.tools = toolsGiven();
  const system = settings.elements.system.value;
  made.messages = nodes.map(message);
  if (system) made.messages.unshift({ role: "system", content: system });
  if (more) made.continue_final_message = true;
  return ["v1/chat/completions", made];
}

function toolsGiven() {
  try {
    return JSON.parse(settings.elements.tools.value);
  } catch {
    throw new Error("Tools: this is not JSON.");
  }
}

// ---- messages

function views() {
  return shownNodes(chat).map((node) => {
    const view = new MessageView(node, isBase());
    controls(view);
    return view;
  });
}

function render() {
  const shown = views();
  $("talk").replaceChildren(...shown.map((view) => view.turn));
  if (!shown.length) $("talk").replaceChildren();
  $("talk").scrollTop = $("talk").scrollHeight;
  return shown;
}

// Renders anew and gives the focus back to the same control of a message, or to the field.
function renderAt(node, kind) {
  render();
  const found = document.querySelector(`[data-id="${node.id}"] .${kind}`);
  (found ?? $("text")).focus();
}

function controls(view) {
  const { node, below } = view;
  const made = [];
  if (node.content) made.push(copyButton(() => node.content));
  if (node.role === "assistant") {
    const last = node.id === chat.head;
    if (last && node.content && (node.finish === "length" || node.finish === "loop" || node.stopped)) {
      made.push(button("rest", "Continue", () => go(node)));
    }
    made.push(button("retry", "Retry", () => retry(node)));
    if (node.receipt) made.push(...receiptControls(node));
    if (last && node.calls?.length) view.before.append(resultForm(node));
  } else if (node.role === "user") {
    made.push(button("edit", "Edit", () => edit(view)));
  }
  const beside = childrenOf(chat, node.parent);
  if (beside.length > 1) made.push(...branches(node, beside));
  if (node.note) made.push(element("span", "facts", node.note));
  below.replaceChildren(...made);
}

function branches(node, beside) {
  const at = beside.indexOf(node);
  const step = (by) => () => {
    if (running) return;
    const other = beside[at + by];
    showBranch(chat, other);
    keep();
    renderAt(other, by < 0 && at + by === 0 ? "next" : by > 0 && at + by === beside.length - 1 ? "previous" : by < 0 ? "previous" : "next");
  };
  const [previous, next] = [button("previous", "\u2039", step(-1), "Previous version"), button("next", "\u203a", step(1), "Next version")];
  previous.disabled = at === 0;
  next.disabled = at === beside.length - 1;
  return [previous, element("span", "facts", `${at + 1} of ${beside.length}`), next];
}

function receiptControls(node) {
  const link = element("a", "", "Check it");
  link.href = "receipt";
  link.target = "_blank";
  return [button("receipt", "Receipt", () => download("receipt.json", node.receipt)), link];
}

// A field for what each called tool gave.
function resultForm(node) {
  const form = element("form", "results");
  const given = node.calls.map((call) => {
    const [label, field] = [element("label", "", `Result of ${call.function.name}`), element("textarea")];
    label.append(field);
    form.append(label);
    return [call, field];
  });
  const send = element("button", "", "Send results");
  form.append(send);
  form.onsubmit = (event) => {
    event.preventDefault();
    if (running) return;
    let parent = node.id;
    for (const [call, field] of given) parent = addNode(chat, parent, "tool", field.value, { call: call.id }).id;
    answer(parent);
  };
  return form;
}

function edit(view) {
  if (running) return;
  const field = element("textarea");
  field.value = view.node.content;
  field.rows = Math.min(12, field.value.split("\n").length + 1);
  field.setAttribute("aria-label", "Edit the message");
  const send = () => {
    const { files } = view.node;
    if (running || !(field.value.trim() || files?.length)) return;
    answer(addNode(chat, view.node.parent, "user", field.value, { files }).id);
  };
  const leave = () => renderAt(view.node, "edit");
  field.onkeydown = (event) => {
    if (event.key === "Escape") leave();
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); send(); }
  };
  view.words.replaceChildren(field);
  view.below.replaceChildren(button("send", "Send", send), button("cancel", "Cancel", leave));
  field.focus();
}

function retry(node) {
  if (!running) answer(node.parent);
}

// A new answer below a message.
function answer(parent) {
  tell("");
  return go(addNode(chat, parent, "assistant", ""));
}

async function streamed(nodes, more, stream, signal) {
  const [place, body] = request(nodes, more);
  const response = await fetch(place, { method: "POST", headers: headers(), body: JSON.stringify(body), signal });
  if (!response.ok) throw new Error(await refused(response));
  for await (const event of events(response)) stream.take(event);
}

// Fills an answer, or goes on with one that was cut or stopped; shows what comes.
async function go(node) {
  if (running) return;
  const mine = chat;
  const more = node.content !== "";
  const view = render().at(-1);
  const stream = new AnswerStream(node, view);
  const abort = new AbortController();
  let finished;
  running = { abort, done: new Promise((resolve) => { finished = resolve; }) };
  $("send").textContent = "Stop";
  let note = "";
  const saving = setInterval(() => save(mine), 2000);
  try {
    const path = shownNodes(mine);
    if (writesDown()) {
      node.content = await writtenDown($("model").value, path.at(-2), headers(), abort.signal);
    } else await streamed(more ? path : path.slice(0, -1), more, stream, abort.signal);
  } catch (error) {
    note = error.name === "AbortError" ? "stopped" : "broken off";
    if (note !== "stopped") tell(error.message);
  }
  clearInterval(saving);
  running = null;
  $("send").textContent = "Send";
  stream.end(note);
  const nothing = !node.content && !node.thought && !node.calls?.length;
  if (nothing && note) takeBack(mine, node);
  if (mine === chat) {
    if (mine.nodes.includes(node)) { view.show(); controls(view); } else render();
    if (model()?.backend === undefined) loadModels(); // it was loaded for this answer
  }
  await keep(mine);
  finished();
}

// Nothing came of an answer: the question goes back into the field, unless it has other answers.
function takeBack(mine, node) {
  dropNode(mine, node);
  const question = nodeOf(mine, node.parent);
  const others = childrenOf(mine, question.id);
  if (others.length) return showBranch(mine, others.at(-1));
  if (question.role !== "user" || mine !== chat || $("text").value) return;
  dropNode(mine, question);
  const before = childrenOf(mine, question.parent).at(-1);
  if (before) showBranch(mine, before);
  $("text").value = question.content;
  attached.put(question.files ?? []);
  fit();
}

// ---- chats

async function save(one) {
  if (!one.nodes.length) return store.remove(one.id);
  one.changed = Date.now();
  one.model = $("model").value;
  return store.put(one);
}

async function keep(one = chat) {
  await save(one);
  await showChats();
}

async function showChats() {
  const all = await store.all();
  const focused = [...$("list").querySelectorAll("button")].indexOf(document.activeElement);
  $("list").replaceChildren(...all.map((one) => {
    const row = element("li");
    const title = one.title || "Without a title";
    const open = button("open", title, () => openChat(one));
    if (one.id === chat.id) open.setAttribute("aria-current", "true");
    row.append(open, button("remove", "Export", () => download("chat.json", exported(one, settings.elements.system.value)), `Export: ${title}`),
      button("remove", "Delete", () => removeChat(one), `Delete: ${title}`));
    return row;
  }));
  if (focused >= 0) ($("list").querySelectorAll("button")[focused] ?? $("show-chats")).focus();
}

async function stopped() {
  if (!running) return;
  running.abort.abort();
  await running.done;
}

async function openChat(one) {
  await stopped();
  chat = one;
  if (models.some((known) => known.id === one.model)) $("model").value = one.model;
  showModel();
  tell("");
  render();
  await showChats();
  $("text").focus();
}

async function removeChat(one) {
  if (!confirm(`Delete "${one.title}"?`)) return;
  if (one.id === chat.id) await stopped();
  await store.remove(one.id);
  if (one.id === chat.id) await openChat(newChat());
  await showChats();
  (document.querySelector("#list .open") ?? $("show-chats")).focus();
}

async function removeAll() {
  if (!confirm("Delete all chats?")) return;
  await stopped();
  await store.clear();
  await openChat(newChat());
}

function download(name, value) {
  const link = element("a");
  link.href = URL.createObjectURL(new Blob([`${JSON.stringify(value, null, 1)}\n`], { type: "application/json" }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

// ---- the form

function submit(event) {
  event.preventDefault();
  if (running) return running.abort.abort();
  const text = isBase() ? $("text").value : $("text").value.trim();
  if (!text.trim() && !attached.files.length) return undefined;
  $("text").value = "";
  fit();
  const files = attached.take();
  return answer(addNode(chat, chat.head, "user", text, files.length ? { files } : {}).id);
}

function fit() {
  $("text").style.height = "auto";
  $("text").style.height = `${$("text").scrollHeight + 2}px`;
}

function remember() {
  const kept = Object.fromEntries(new FormData(settings));
  delete kept.key;
  localStorage.setItem(REMEMBERED, JSON.stringify(kept));
}

function recall() {
  try {
    const kept = JSON.parse(localStorage.getItem(REMEMBERED) || "{}");
    for (const [name, value] of Object.entries(kept)) {
      const field = settings.elements[name];
      if (field?.type === "checkbox") field.checked = value === "on";
      else if (field) field.value = value;
    }
  } catch {
    localStorage.removeItem(REMEMBERED);
  }
}

function toggle(opener, panel) {
  panel.hidden = !panel.hidden;
  opener.setAttribute("aria-expanded", String(!panel.hidden));
}

$("ask").onsubmit = submit;
$("text").oninput = fit;
$("text").onkeydown = (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault(); // only the button stops an answer: what is typed meanwhile stays
  if (!running) submit(event);
};
$("attach").onclick = () => $("file").click();
document.ondragover = (event) => event.preventDefault(); // else the browser opens the file
document.ondrop = async (event) => {
  event.preventDefault();
  for (const file of event.dataTransfer.files) await attached.add(file);
};
document.onpaste = async (event) => {
  const files = [...event.clipboardData.files]; // of a picture; pasted text has none
  if (!files.length) return;
  event.preventDefault();
  for (const file of files) await attached.add(file);
};
$("model").onchange = showModel;
$("more").onclick = () => toggle($("more"), settings);
$("show-chats").onclick = () => toggle($("show-chats"), $("chats"));
$("fresh").onclick = () => openChat(newChat());
$("export-all").onclick = async () => download("chats.json", (await store.all()).map((one) => exported(one, "")));
$("delete-all").onclick = removeAll;
for (const [opener, panel] of [[$("more"), settings], [$("show-chats"), $("chats")]]) {
  panel.onkeydown = (event) => {
    if (event.key !== "Escape") return;
    toggle(opener, panel);
    opener.focus();
  };
}
settings.onchange = remember;
settings.onsubmit = (event) => event.preventDefault();
settings.elements.key.onchange = loadModels;
addEventListener("pagehide", () => { save(chat); });

async function begin() {
  recall();
  await store.open();
  if (!store.kept) $("kept").textContent = "This browser keeps no chats: export what you need.";
  await showChats();
  await loadModels();
}
begin();

"use strict";

// Texts of models and users become text nodes, never markup.

const $ = (id) => document.getElementById(id);
const settings = $("settings");
const FIELDS = ["temperature", "top_p", "max_completion_tokens", "seed"];
const REMEMBERED = "cortiq-settings";
let models = [];
let messages = [];
let running = null;

function element(name, kind, text) {
  const made = document.createElement(name);
  if (kind) made.className = kind;
  if (text) made.textContent = text;
  return made;
}

function headers() {
  const made = { "content-type": "application/json" };
  const key = settings.elements.key.value;
  if (key) made.authorization = `Bearer ${key}`;
  return made;
}

function tell(trouble) {
  $("trouble").textContent = trouble;
  $("trouble").hidden = !trouble;
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
    models = (await response.json()).data;
    $("model").replaceChildren(...models.map((model) => new Option(model.id, model.id)));
    showModel();
    tell("");
  } catch {
    tell("The server cannot be reached.");
  }
}

function showModel() {
  const model = models.find((one) => one.id === $("model").value);
  if (!model) return;
  $("backend").textContent = `${model.backend}, ${model.context_length} tokens`;
  $("fingerprint").textContent = `Fingerprint ${model.system_fingerprint}: the same seed gives the ` +
    "same answer on every backend.";
  // An empty field is not sent: the server then samples as the model recommends.
  settings.elements.temperature.placeholder = model.sampling.temperature;
  settings.elements.top_p.placeholder = model.sampling.top_p ?? 1;
  tell(model.chat ? "" : "This model has no chat template: it is a base model.");
}

// Text with ``` fences as paragraphs and code.
function draw(words, text) {
  const parts = text.split(/^```[^\n]*\n?/m);
  words.replaceChildren(...parts.map((part, i) => element(i % 2 ? "pre" : "span", "", part)));
}

function addTurn(role, text) {
  const turn = element("article", `turn ${role}`);
  const words = element("div", "words");
  turn.append(words);
  draw(words, text);
  $("talk").append(turn);
  $("talk").scrollTop = $("talk").scrollHeight;
  return { turn, words };
}

function copyButton(text) {
  const button = element("button", "copy", "Copy");
  button.type = "button";
  button.onclick = async () => {
    try {
      await navigator.clipboard.writeText(text());
    } catch { // without https browsers may refuse: the old way
      const field = element("textarea");
      field.value = text();
      document.body.append(field);
      field.select();
      document.execCommand("copy");
      field.remove();
    }
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  };
  return button;
}

function request() {
  const made = { model: $("model").value, stream: true, stream_options: { include_usage: true } };
  for (const name of FIELDS) {
    const value = settings.elements[name].value;
    if (value !== "") made[name] = Number(value);
  }
  const system = settings.elements.system.value;
  made.messages = system ? [{ role: "system", content: system }, ...messages] : messages;
  return made;
}

// The objects of a stream of server-sent events, and null for each comment.
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let held = ""; ;) {
    const { done, value } = await reader.read();
    if (done) return;
    const whole = (held + value).split("\n\n");
    held = whole.pop();
    for (const event of whole) {
      if (event.startsWith(":")) yield { comment: event.slice(1).trim() };
      else if (event !== "data: [DONE]") yield JSON.parse(event.slice("data: ".length));
    }
  }
}

class Answer {
  constructor() {
    Object.assign(this, addTurn("assistant", ""));
    this.text = "";
    this.thought = "";
    this.first = 0;
    this.facts = element("span", "facts", "…");
    this.below = element("div", "below");
    this.below.append(this.facts);
    this.turn.append(this.below);
  }

  take(event) {
    if (event.error) throw new Error(event.error.message);
    if (event.comment !== undefined) {
      if (!this.first) this.facts.textContent = event.comment;
      return;
    }
    if (event.usage) this.usage = event.usage;
    if (event.choices[0]?.finish_reason === "length") this.cut = true;
    const delta = event.choices[0]?.delta;
    if (delta?.reasoning_content) this.think(delta.reasoning_content);
    if (delta?.content) this.say(delta.content);
  }

  arrived() {
    if (!this.first) this.first = performance.now();
    this.facts.textContent = "";
  }

  say(text) {
    this.arrived();
    this.text += text;
    this.soon();
  }

  // Pieces may come faster than a screen can show them.
  soon() {
    if (this.drawing) return;
    this.drawing = true;
    requestAnimationFrame(() => this.show());
  }

  show() {
    const talk = $("talk");
    const low = talk.scrollHeight - talk.scrollTop - talk.clientHeight < 80;
    this.drawing = false;
    draw(this.words, this.text);
    if (this.box) this.box.textContent = this.thought;
    if (low) talk.scrollTop = talk.scrollHeight;
  }

  think(text) {
    this.arrived();
    if (!this.box) {
      const details = element("details");
      this.box = element("div");
      details.append(element("summary", "", "Thinking"), this.box);
      this.turn.prepend(details);
    }
    this.thought += text;
    this.soon();
  }

  end(note) {
    this.show();
    const facts = note ? [note] : [];
    if (this.usage) {
      const seconds = (performance.now() - this.first) / 1000;
      const count = this.usage.completion_tokens;
      const cached = this.usage.prompt_tokens_details.cached_tokens;
      facts.push(`${this.usage.prompt_tokens} + ${count} tokens`, `${cached} cached`);
      if (count > 1 && seconds > 0) facts.push(`${((count - 1) / seconds).toFixed(1)} tokens/s`);
    }
    if (this.cut && !note) facts.push("cut: the longest answer was reached");
    this.facts.textContent = facts.join(", ");
    if (!this.copy) this.below.prepend(this.copy = copyButton(() => this.text));
  }
}

// Asks the server for the rest of the last answer, which was cut or stopped.
async function more(answer) {
  answer.button.remove();
  const conversation = messages;
  const last = messages[messages.length - 1];
  answer.cut = false;
  await receive(answer, { continue_final_message: true });
  if (conversation === messages) last.content = answer.text;
}

function offerMore(answer) {
  answer.button = element("button", "rest", "Continue");
  answer.button.type = "button";
  answer.button.onclick = () => { if (!running) more(answer); };
  answer.below.append(answer.button);
}

async function ask(text) {
  tell("");
  for (const button of document.querySelectorAll("button.rest")) button.remove();
  const conversation = messages;
  messages.push({ role: "user", content: text });
  addTurn("user", text);
  const answer = new Answer();
  await receive(answer, {});
  if (conversation !== messages) return; // a new chat has begun
  if (answer.text) messages.push({ role: "assistant", content: answer.text });
  else if (!answer.thought) { // nothing came of it: the question goes back into the field
    messages.pop();
    answer.turn.previousElementSibling.remove();
    answer.turn.remove();
    if (!$("text").value) $("text").value = text;
  }
}

// Sends the conversation and shows what comes; fields are added to the request.
async function receive(answer, fields) {
  answer.first = 0;
  running = new AbortController();
  $("send").textContent = "Stop";
  let note = "";
  try {
    const response = await fetch("v1/chat/completions", {
      method: "POST", headers: headers(), body: JSON.stringify({ ...request(), ...fields }),
      signal: running.signal,
    });
    if (!response.ok) throw new Error(await refused(response));
    for await (const event of events(response)) answer.take(event);
  } catch (error) {
    if (error.name === "AbortError") note = "stopped";
    else tell(error.message);
  }
  running = null;
  $("send").textContent = "Send";
  answer.end(note);
  if ((answer.cut || note) && answer.text) offerMore(answer);
}

function submit(event) {
  event.preventDefault();
  if (running) return running.abort();
  const text = $("text").value.trim();
  if (!text) return undefined;
  $("text").value = "";
  fit();
  return ask(text);
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
    for (const [name, value] of Object.entries(kept)) settings.elements[name].value = value;
  } catch {
    localStorage.removeItem(REMEMBERED);
  }
}

$("ask").onsubmit = submit;
$("text").oninput = fit;
$("text").onkeydown = (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault(); // only the button stops an answer: what is typed meanwhile stays
  if (!running) submit(event);
};
$("model").onchange = showModel;
$("more").onclick = () => {
  settings.hidden = !settings.hidden;
  $("more").setAttribute("aria-expanded", String(!settings.hidden));
};
$("fresh").onclick = () => {
  if (running) running.abort();
  messages = [];
  $("talk").replaceChildren();
  tell("");
  $("text").focus();
};
settings.onchange = remember;
settings.onsubmit = (event) => event.preventDefault();
settings.elements.key.onchange = loadModels;
recall();
loadModels();

"use strict";

// The objects of a stream of server-sent events; { comment } for a comment.
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

function folded(title, text) {
  const [details, box] = [element("details"), element("div", "", text)];
  details.append(element("summary", "", title), box);
  return { details, box };
}

// Shows a message; that of a model while it arrives, too.
class MessageView {
  constructor(node, plain) {
    this.node = node;
    this.plain = plain || node.role !== "assistant";
    this.turn = element("article", `turn ${node.role}`);
    this.turn.dataset.id = node.id;
    this.turn.setAttribute("aria-label", { user: "You", assistant: "Answer", tool: "Result of a tool" }[node.role]);
    this.before = element("div");
    this.words = element("div", this.plain ? "words plain" : "words");
    this.below = element("div", "below");
    this.turn.append(this.before, this.words, this.below);
    this.pause = 0;
    this.show();
  }

  // Pieces may come faster than a screen, or the rendering of a long text, can show them.
  soon() {
    if (this.waiting) return;
    this.waiting = true;
    setTimeout(() => requestAnimationFrame(() => { this.waiting = false; this.show(); }), this.pause);
  }

  show() {
    const talk = $("talk");
    const low = talk.scrollHeight - talk.scrollTop - talk.clientHeight < 80;
    const started = performance.now();
    if (this.plain) this.words.textContent = this.node.content;
    else this.words.replaceChildren(rendered(this.node.content, copyButton));
    if (this.node.files?.length) {
      this.before.replaceChildren(element("p", "facts", this.node.files.map((file) => file.name).join(", ")));
    }
    this.fold("thought", "Thinking", this.node.thought);
    (this.node.calls ?? []).forEach((call, i) =>
      this.fold(`call ${i}`, `Tool call: ${call.function.name}`, call.function.arguments));
    if (low) talk.scrollTop = talk.scrollHeight;
    this.pause = (performance.now() - started) * 4;
  }

  fold(key, title, text) {
    if (!text) return;
    this.folds ??= new Map();
    if (!this.folds.has(key)) {
      this.folds.set(key, folded(title, text));
      this.before.append(this.folds.get(key).details);
    }
    this.folds.get(key).box.textContent = text;
  }
}

// Takes the events of a stream into a node.
class AnswerStream {
  constructor(node, view) {
    Object.assign(this, { node, view, first: 0, usage: null });
    this.facts = element("span", "facts", "\u2026");
    this.facts.setAttribute("role", "status");
    view.below.replaceChildren(this.facts);
    Object.assign(node, { finish: null, receipt: null, note: "" });
    this.base = node.content;
  }

  take(event) {
    if (event.error) throw new Error(event.error.message);
    if (event.comment !== undefined) {
      if (!this.first) this.facts.textContent = event.comment;
      return;
    }
    if (event.usage) this.usage = event.usage;
    const choice = event.choices?.[0];
    if (!choice) return;
    if (choice.finish_reason) this.node.finish = choice.stop_reason === "loop" ? "loop" : choice.finish_reason;
    if (choice.receipt && !this.base) this.node.receipt = choice.receipt; // of a whole answer only
    const delta = choice.delta ?? { content: choice.text };
    if (delta.reasoning_content) this.arrived("thought", delta.reasoning_content);
    if (delta.content) this.arrived("content", delta.content);
    for (const call of delta.tool_calls ?? []) this.call(call);
  }

  arrived(part, text) {
    if (!this.first) this.first = performance.now();
    this.facts.textContent = "";
    this.node[part] = (this.node[part] ?? "") + text;
    this.view.soon();
  }

  call(piece) {
    const calls = this.node.calls ??= [];
    const call = calls[piece.index] ??= { id: "", type: "function", function: { name: "", arguments: "" } };
    call.id ||= piece.id ?? "";
    call.function.name += piece.function?.name ?? "";
    call.function.arguments += piece.function?.arguments ?? "";
    if (!this.first) this.first = performance.now();
    this.view.soon();
  }

  end(note) {
    const facts = note ? [note] : [];
    if (this.usage) {
      const seconds = (performance.now() - this.first) / 1000;
      const count = this.usage.completion_tokens;
      const cached = this.usage.prompt_tokens_details?.cached_tokens ?? 0;
      facts.push(`${this.usage.prompt_tokens} + ${count} tokens`, `${cached} cached`);
      if (count > 1 && seconds > 0) facts.push(`${((count - 1) / seconds).toFixed(1)} tokens/s`);
    }
    if (this.node.finish === "length") facts.push("cut: the longest answer was reached");
    if (this.node.finish === "loop") facts.push("stopped: the text repeats itself");
    this.node.note = facts.join(", ");
    this.node.stopped = Boolean(note);
  }
}

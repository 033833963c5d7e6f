"use strict";

// Files that go with a message: { name, kind, format, data } with the file in base64.

const KINDS = {
  audio: { wav: "wav", mp3: "mp3", mpeg: "mp3", flac: "flac", ogg: "ogg", oga: "ogg", opus: "ogg" },
  image: { png: "png", jpg: "jpeg", jpeg: "jpeg", webp: "webp", gif: "gif" },
};
const CALLED = { audio: "a sound is a WAV, MP3, FLAC or Ogg file", image: "an image is a PNG, JPEG, WebP or GIF file" };
const LABELS = { audio: "Sound", image: "Image" };

class Attached {
  constructor(field, list, tell) {
    Object.assign(this, { field, list, tell, files: [], kinds: [] });
    field.onchange = async () => {
      const files = [...field.files];
      field.value = ""; // the same file may be chosen again
      for (const file of files) await this.add(file);
    };
  }

  // Takes the kinds of file that a model reads; files of others are dropped.
  offer(button, model) {
    this.kinds = Object.keys(KINDS).filter((kind) => model[kind === "image" ? "images" : kind]);
    button.hidden = !this.kinds.length;
    button.textContent = this.kinds.length > 1 ? "File" : LABELS[this.kinds[0]] ?? "";
    const ends = this.kinds.flatMap((kind) => Object.keys(KINDS[kind]).map((end) => `.${end}`));
    this.field.accept = [...this.kinds.map((kind) => `${kind}/*`), ...ends].join();
    const kept = this.files.filter((file) => this.kinds.includes(file.kind));
    if (kept.length < this.files.length) this.put(kept);
  }

  async add(file) {
    if (!this.kinds.length) return this.tell(`${file.name}: this model reads texts only.`);
    const end = file.name.split(".").at(-1).toLowerCase();
    const kind = this.kinds.find((one) => KINDS[one][end]);
    if (!kind) return this.tell(`${file.name}: ${this.kinds.map((one) => CALLED[one]).join(", ")}.`);
    const data = await new Promise((resolve, reject) => {
      const reader = new FileReader();
      reader.onload = () => resolve(reader.result.slice(reader.result.indexOf(",") + 1));
      reader.onerror = () => reject(reader.error);
      reader.readAsDataURL(file);
    }).catch((error) => this.tell(`${file.name}: ${error.message}`));
    if (data) this.put([...this.files, { name: file.name, kind, format: KINDS[kind][end], data }]);
    return undefined;
  }

  put(files) {
    this.files = files;
    this.list.replaceChildren(...files.map((file) => {
      const made = element("button", "remove", `${file.name} \u00d7`);
      made.type = "button";
      made.setAttribute("aria-label", `Remove ${file.name}`);
      made.onclick = () => { this.put(this.files.filter((one) => one !== file)); $("text").focus(); };
      return made;
    }));
    this.list.hidden = !files.length;
  }

  take() {
    const { files } = this;
    this.put([]);
    return files;
  }
}

// A file as a part of a message, as OpenAI's API has it.
function partOf({ kind, format, data }) {
  if (kind === "audio") return { type: "input_audio", input_audio: { data, format } };
  return { type: "image_url", image_url: { url: `data:image/${format};base64,${data}` } };
}

// The content of a message with its files.
function contentOf(node) {
  if (!node.files?.length) return node.content;
  const parts = node.files.map(partOf);
  return node.content ? [...parts, { type: "text", text: node.content }] : parts;
}

// Has a sound written down; the message's text is what came before it.
async function writtenDown(name, node, headers, signal) {
  const [sound] = node.files ?? [];
  if (!sound) throw new Error("This model writes down what is said: choose a sound.");
  const bytes = Uint8Array.from(atob(sound.data), (letter) => letter.charCodeAt(0));
  const form = new FormData();
  for (const [key, value] of Object.entries({ model: name, response_format: "json" })) form.append(key, value);
  if (node.content) form.append("prompt", node.content);
  form.append("file", new Blob([bytes]), sound.name);
  const { "content-type": _, ...own } = headers; // the form has its own
  const response = await fetch("v1/audio/transcriptions", { method: "POST", headers: own, body: form, signal });
  if (!response.ok) throw new Error(await refused(response));
  return (await response.json()).text;
}

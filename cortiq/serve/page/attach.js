"use strict";

// Sounds that go with a message: { name, format, data } with the file in base64.

const FORMATS = { wav: "wav", mp3: "mp3", mpeg: "mp3", flac: "flac", ogg: "ogg", oga: "ogg", opus: "ogg" };

class Attached {
  constructor(field, list, tell) {
    Object.assign(this, { field, list, tell, sounds: [] });
    field.onchange = async () => {
      const files = [...field.files];
      field.value = ""; // the same file may be chosen again
      for (const file of files) await this.add(file);
    };
  }

  async add(file) {
    const format = FORMATS[file.name.split(".").at(-1).toLowerCase()];
    if (!format) return this.tell(`${file.name}: a sound is a WAV, MP3, FLAC or Ogg file.`);
    const data = await new Promise((resolve, reject) => {
      const reader = new FileReader();
      reader.onload = () => resolve(reader.result.slice(reader.result.indexOf(",") + 1));
      reader.onerror = () => reject(reader.error);
      reader.readAsDataURL(file);
    }).catch((error) => this.tell(`${file.name}: ${error.message}`));
    if (data) this.put([...this.sounds, { name: file.name, format, data }]);
    return undefined;
  }

  put(sounds) {
    this.sounds = sounds;
    this.list.replaceChildren(...sounds.map((sound) => {
      const made = element("button", "remove", `${sound.name} \u00d7`);
      made.type = "button";
      made.setAttribute("aria-label", `Remove ${sound.name}`);
      made.onclick = () => { this.put(this.sounds.filter((one) => one !== sound)); $("text").focus(); };
      return made;
    }));
    this.list.hidden = !sounds.length;
  }

  take() {
    const sounds = this.sounds;
    this.put([]);
    return sounds;
  }
}

// The content of a message with its sounds, as OpenAI's API has it.
function contentOf(node) {
  if (!node.sounds?.length) return node.content;
  const parts = node.sounds.map(({ data, format }) => ({ type: "input_audio", input_audio: { data, format } }));
  return node.content ? [...parts, { type: "text", text: node.content }] : parts;
}

// Has a sound written down; the message's text is what came before it.
async function writtenDown(name, node, headers, signal) {
  const [sound] = node.sounds ?? [];
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

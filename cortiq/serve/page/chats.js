"use strict";

// A chat is a tree of messages: an edited question or another answer is a branch beside the first.
// `nodes` are in the order in which they were made, `head` is the last message that is shown.

const newId = () => crypto.randomUUID?.() ?? `${Date.now()}-${Math.random()}`; // none without HTTPS

function newChat() {
  return { id: newId(), title: "", changed: Date.now(), nodes: [], head: null };
}

const nodeOf = (chat, id) => chat.nodes.find((node) => node.id === id);
const childrenOf = (chat, id) => chat.nodes.filter((node) => node.parent === id);

function addNode(chat, parent, role, content, more = {}) {
  const node = { id: newId(), parent, role, content, ...more };
  chat.nodes.push(node);
  chat.head = node.id;
  if (!chat.title && role === "user") chat.title = (content.trim() || more.files?.[0].name || "").slice(0, 60);
  return node;
}

// Removes a node that has no children.
function dropNode(chat, node) {
  chat.nodes = chat.nodes.filter((one) => one !== node);
  chat.head = node.parent;
}

// The messages from the first one to the head.
function shownNodes(chat) {
  const path = [];
  for (let node = nodeOf(chat, chat.head); node; node = nodeOf(chat, node.parent)) path.unshift(node);
  return path;
}

// Shows the branch that a node is on, down to its newest message.
function showBranch(chat, node) {
  let last = node;
  for (let next = last; next; next = childrenOf(chat, last.id).at(-1)) last = next;
  chat.head = last.id;
}

// Chats in IndexedDB; in memory where the browser has none, as in some private windows.
class ChatStore {
  constructor() {
    this.memory = new Map();
    this.kept = true;
  }

  async open() {
    try {
      this.base = await new Promise((resolve, reject) => {
        const opening = indexedDB.open("cortiq", 1);
        opening.onupgradeneeded = () => opening.result.createObjectStore("chats", { keyPath: "id" });
        opening.onsuccess = () => resolve(opening.result);
        opening.onerror = () => reject(opening.error);
        opening.onblocked = () => reject(new Error("blocked"));
      });
    } catch {
      this.kept = false;
    }
  }

  async ask(mode, work) {
    const store = this.base.transaction("chats", mode).objectStore("chats");
    return new Promise((resolve, reject) => {
      const asked = work(store);
      asked.onsuccess = () => resolve(asked.result);
      asked.onerror = () => reject(asked.error);
    });
  }

  async all() {
    const found = this.base ? await this.ask("readonly", (store) => store.getAll()) : [...this.memory.values()];
    return found.sort((a, b) => b.changed - a.changed);
  }

  async put(chat) {
    if (this.base) await this.ask("readwrite", (store) => store.put(structuredClone(chat)));
    else this.memory.set(chat.id, structuredClone(chat));
  }

  async remove(id) {
    if (this.base) await this.ask("readwrite", (store) => store.delete(id));
    else this.memory.delete(id);
  }

  async clear() {
    if (this.base) await this.ask("readwrite", (store) => store.clear());
    else this.memory.clear();
  }
}

// The form that `/load` of `cortiq chat` reads, with the branches that are not shown beside it.
function exported(chat, system) {
  const messages = shownNodes(chat).filter(({ role }) => role !== "tool").map(({ role, content }) => ({ role, content }));
  return { format: "cortiq-chat", version: 1, model: chat.model ?? "", system: system || null, messages, chat };
}

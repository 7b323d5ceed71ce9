// Files that a person pastes, drops or chooses, as blocks of a prompt.

import { h } from "../lib/dom.js";
import { bytes, visible } from "../lib/text.js";
import { ATTACHED_MAX } from "../state/compose.js";
import { pictureOf } from "../lib/media.js";

/** @typedef {import("../state/compose.js").Attached} Attached */

/** @param {Blob} file @returns {Promise<string>} */
const base64 = (file) =>
  new Promise((done, failed) => {
    const reader = new FileReader();
    reader.onload = () => done(String(reader.result).replace(/^[^,]*,/, ""));
    reader.onerror = () => failed(reader.error);
    reader.readAsDataURL(file);
  });

/** The text of a file; null if it is none. @param {File} file */
async function textOf(file) {
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
    return text.includes("\u0000") ? null : text;
  } catch {
    return null;
  }
}

/** @param {File} file @returns {Promise<Attached>} */
export async function attachedOf(file) {
  const { name, size, type } = file;
  // What is too much is not read; it is refused by its size.
  if (size > ATTACHED_MAX) return { name, size, block: { type: "resource" } };
  const [kind] = type.split("/");
  if (kind === "image" || kind === "audio") return { name: name || kind, size, block: { type: kind, mimeType: type, data: await base64(file) } };
  const text = await textOf(file);
  const uri = `attachment:///${encodeURIComponent(name)}`;
  const resource = text === null ? { uri, mimeType: type || "application/octet-stream", blob: await base64(file) } : { uri, mimeType: type || "text/plain", text };
  return { name, size, block: { type: "resource", resource } };
}

/** What goes along with the prompt. @param {{list: Attached[], remove: (at: number) => void}} props */
export function AttachedList({ list, remove }) {
  return h(
    "ul",
    { class: "attachments", "aria-label": "goes along" },
    list.map((one, at) => {
      const isPicture = one.block.type === "image" && pictureOf(one.block.mimeType, one.block.data);
      return h("li", { key: `${at} ${one.name}`, class: "chip" }, isPicture ? h("img", { src: `data:${one.block.mimeType};base64,${one.block.data}`, alt: "", width: "20", height: "20" }) : null, visible(one.name), h("span", { class: "num" }, bytes(one.size)), h("button", { class: "link", type: "button", "aria-label": `remove ${one.name}`, onclick: () => remove(at) }, "✕"));
    }),
  );
}

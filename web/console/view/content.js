// Pictures, sounds, files and links that were said. All of it comes from an agent or a person: nothing is loaded from anywhere, and a
// picture never leaves its frame.

import { asJson, h } from "../lib/dom.js";
import { bytesOf, pictureOf, sizeOf } from "../lib/media.js";
import { bytes, folder, plain, visible } from "../lib/text.js";
import { note } from "../state/app.js";

const SHOWN = 20_000;

/** A block of content that is no text. @param {{content: any}} props */
export function Content({ content }) {
  const { type } = content;
  if (type === "image") return h(Picture, { content });
  if (type === "audio") return h("div", { class: "attached" }, h("sb-sound", { data: content.data }), h("span", { class: "muted" }, `sound · ${plain(content.mimeType)} · ${bytes(sizeOf(content.data))}`), saver("sound", content.mimeType, content.data));
  if (type === "resource_link") return h(Link, { content });
  if (type === "resource") return h(Resource, { resource: content.resource ?? {} });
  return h("details", { class: "unshown muted" }, h("summary", null, `content of the kind “${plain(type ?? "none").slice(0, 60)}”`), h("pre", { class: "code", tabindex: "0" }, visible(asJson(content, SHOWN))));
}

/** @param {{content: any}} props */
function Picture({ content }) {
  const { mimeType, data } = content;
  const size = pictureOf(mimeType, data);
  const words = `picture · ${plain(mimeType)}${size ? ` · ${size.width} × ${size.height}` : ""} · ${bytes(sizeOf(data))}`;
  // It has its height before it is drawn, so that nothing jumps.
  const scale = size ? Math.min(1, 480 / size.width, 320 / size.height) : 0;
  return h(
    "figure",
    { class: "attached picture" },
    size ? h("img", { src: `data:${mimeType};base64,${data}`, alt: "a picture that was sent", decoding: "async", width: String(Math.max(1, Math.round(size.width * scale))), height: String(Math.max(1, Math.round(size.height * scale))) }) : null,
    h("figcaption", { class: "muted" }, words, size ? null : " · not drawn here"),
    saver("picture", mimeType, data),
  );
}

/** @param {{content: any}} props */
function Link({ content }) {
  const uri = String(content.uri ?? "");
  const name = String(content.title || content.name || uri);
  const isWeb = /^https?:\/\//i.test(uri);
  const path = uri.startsWith("file://") ? folder(decodedPath(uri)) : uri;
  return h(
    "div",
    { class: "attached" },
    h("span", { "aria-hidden": "true" }, "↗"),
    isWeb ? h("a", { href: uri, title: plain(uri), target: "_blank", rel: "noopener noreferrer" }, visible(name)) : h("span", { class: "mono" }, visible(name)),
    name === path ? null : h("span", { class: "mono muted ellipsis", title: plain(uri) }, visible(path)),
    h("span", { class: "muted" }, [content.mimeType && plain(content.mimeType), typeof content.size === "number" && bytes(content.size)].filter(Boolean).join(" · ")),
    content.description ? h("p", { class: "muted" }, visible(String(content.description))) : null,
  );
}

/** @param {string} uri */
function decodedPath(uri) {
  try {
    return decodeURIComponent(uri.slice(7));
  } catch {
    return uri.slice(7);
  }
}

/** A file in full. @param {{resource: any}} props */
function Resource({ resource }) {
  const { uri, mimeType, text, blob } = resource;
  const words = `${plain(mimeType ?? "file")} · ${bytes(typeof text === "string" ? text.length : sizeOf(blob))}`;
  if (typeof text !== "string") {
    const picture = pictureOf(mimeType, blob) ? h(Picture, { content: { mimeType, data: blob } }) : null;
    return h("div", { class: "attached-file" }, h("div", { class: "attached" }, h("span", { class: "mono" }, visible(String(uri ?? "file"))), picture ? null : h("span", { class: "muted" }, words), picture ? null : saver("file", mimeType, blob)), picture);
  }
  const cut = text.length > SHOWN ? `\n⋯ ${text.length - SHOWN} more characters` : "";
  return h("details", { class: "attached-file" }, h("summary", null, h("span", { class: "mono" }, visible(String(uri ?? "file"))), ` · ${words}`), h("pre", { class: "code", tabindex: "0" }, visible(text.slice(0, SHOWN) + cut)));
}

/** Saves it as a file, which is never shown as a page of this origin. @param {string} name @param {unknown} kind @param {unknown} data */
function saver(name, kind, data) {
  if (typeof data !== "string" || !data) return null;
  const ending = /^[\w-]+\/([\w-]{1,12})$/.exec(String(kind))?.[1] ?? "bin";
  const save = () => {
    const address = URL.createObjectURL(new Blob([bytesOf(data)], { type: "application/octet-stream" }));
    const link = document.createElement("a");
    link.href = address;
    link.download = `${name}.${ending}`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(address), 1000);
  };
  return h("button", { class: "link", type: "button", onclick: save }, "save");
}

/** <sb-sound>: plays when it is asked to, from the bytes that are here. */
export class Sound extends HTMLElement {
  constructor() {
    super();
    /** @type {unknown} */ this.data = null;
    /** @type {AudioBufferSourceNode | null} */ this.source = null;
  }

  connectedCallback() {
    if (this.button) return;
    this.button = document.createElement("button");
    this.button.type = "button";
    this.button.className = "button small";
    this.button.onclick = () => (this.source ? this.stop() : this.play());
    this.append(this.button);
    this.stop();
  }

  disconnectedCallback() {
    this.stop();
  }

  stop() {
    this.source?.stop();
    this.source = null;
    if (this.button) this.button.textContent = "▶ Play";
  }

  async play() {
    try {
      context ??= new AudioContext();
      const sound = await context.decodeAudioData(bytesOf(this.data).buffer);
      this.source = context.createBufferSource();
      this.source.buffer = sound;
      this.source.connect(context.destination);
      this.source.onended = () => this.stop();
      this.source.start();
      if (this.button) this.button.textContent = `■ Stop (${sound.duration.toFixed(1)} s)`;
    } catch {
      note("This sound cannot be played here.");
    }
  }
}

/** @type {AudioContext | null} */
let context = null;
customElements.define("sb-sound", Sound);

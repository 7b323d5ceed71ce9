// What comes as base64: pictures, sounds, files, the output of terminals. Pure.

import { look, table } from "./table.js";

/** A picture with more points than this is not drawn: unpacked it would take the memory of the page. */
const POINTS_MAX = 40e6;
/** And one that is longer than this is not looked at. */
const LENGTH_MAX = 24e6;

/** @param {unknown} data @returns {Uint8Array<ArrayBuffer>} what cannot be read is nothing */
export function bytesOf(data) {
  try {
    const binary = atob(typeof data === "string" ? data : "");
    const bytes = new Uint8Array(binary.length);
    for (let at = 0; at < binary.length; at++) bytes[at] = binary.charCodeAt(at);
    return bytes;
  } catch {
    return new Uint8Array();
  }
}

/** How many bytes it is unpacked. @param {unknown} data */
export const sizeOf = (data) => (typeof data === "string" ? Math.floor((data.length * 3) / 4) - (data.endsWith("==") ? 2 : data.endsWith("=") ? 1 : 0) : 0);

/** Text of bytes that come in pieces: a character may be in two of them, so what is not whole is the rest. @param {string} rest @param {unknown} data @returns {{text: string, rest: string}} */
export function textOf(rest, data) {
  const [first, more] = [bytesOf(rest), bytesOf(data)];
  const bytes = new Uint8Array(first.length + more.length);
  bytes.set(first);
  bytes.set(more, first.length);
  const whole = bytes.length - unfinished(bytes);
  return { text: new TextDecoder().decode(bytes.subarray(0, whole)), rest: btoa(String.fromCharCode(...bytes.subarray(whole))) };
}

/** How many bytes at the end begin a character that is not complete. @param {Uint8Array} bytes */
function unfinished(bytes) {
  for (let back = 1; back <= 3 && back <= bytes.length; back++) {
    const byte = bytes[bytes.length - back];
    if ((byte & 0xc0) === 0x80) continue;
    const wants = byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : byte >= 0xc0 ? 2 : 1;
    return wants > back ? back : 0;
  }
  return 0;
}

const READERS = table({ "image/png": png, "image/jpeg": jpeg, "image/jpg": jpeg, "image/gif": gif, "image/webp": webp });

/**
 * How large a picture is, if it is one that this page draws: points only, no drawing that is a program.
 * @param {unknown} kind @param {unknown} data
 * @returns {{width: number, height: number} | null}
 */
export function pictureOf(kind, data) {
  const reader = look(READERS, kind);
  if (!reader || typeof data !== "string" || data.length > LENGTH_MAX || !/^[A-Za-z0-9+/=\s]*$/.test(data.slice(0, 1000))) return null;
  // The beginning tells it; in a photograph other things may stand before it.
  const found = reader(bytesOf(data.slice(0, 400_000).replace(/\s+/g, "").replace(/=+$/, "").replace(/^((?:.{4})*).*$/s, "$1")));
  return found && found.width > 0 && found.height > 0 && found.width * found.height <= POINTS_MAX ? found : null;
}

/** @param {Uint8Array} bytes */
const view = (bytes) => new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);

/** @param {Uint8Array} bytes @param {number} from @param {string} word */
const has = (bytes, from, word) => [...word].every((letter, at) => bytes[from + at] === letter.charCodeAt(0));

/** @param {Uint8Array} bytes */
function png(bytes) {
  return bytes.length >= 24 && has(bytes, 1, "PNG") ? { width: view(bytes).getUint32(16), height: view(bytes).getUint32(20) } : null;
}

/** @param {Uint8Array} bytes */
function gif(bytes) {
  return bytes.length >= 10 && has(bytes, 0, "GIF8") ? { width: view(bytes).getUint16(6, true), height: view(bytes).getUint16(8, true) } : null;
}

/** @param {Uint8Array} bytes */
function jpeg(bytes) {
  if (bytes[0] !== 0xff || bytes[1] !== 0xd8) return null;
  for (let at = 2; at + 9 < bytes.length && bytes[at] === 0xff; at += 2 + view(bytes).getUint16(at + 2)) {
    const mark = bytes[at + 1];
    if (mark >= 0xc0 && mark <= 0xcf && ![0xc4, 0xc8, 0xcc].includes(mark)) return { width: view(bytes).getUint16(at + 7), height: view(bytes).getUint16(at + 5) };
  }
  return null;
}

/** @param {Uint8Array} bytes */
function webp(bytes) {
  if (bytes.length < 30 || !has(bytes, 0, "RIFF") || !has(bytes, 8, "WEBP")) return null;
  const data = view(bytes);
  if (has(bytes, 12, "VP8 ")) return { width: data.getUint16(26, true) & 0x3fff, height: data.getUint16(28, true) & 0x3fff };
  if (has(bytes, 12, "VP8L")) return { width: 1 + (data.getUint32(21, true) & 0x3fff), height: 1 + ((data.getUint32(21, true) >>> 14) & 0x3fff) };
  const three = (at) => 1 + bytes[at] + (bytes[at + 1] << 8) + (bytes[at + 2] << 16);
  return { width: three(24), height: three(27) };
}

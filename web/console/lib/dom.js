// The renderer: trees of plain objects become DOM nodes. Text is always a text node; nothing here parses markup.

/** @typedef {string | number | boolean | null | undefined | VNode} Child */
/** @typedef {Child | Child[] | Child[][]} Children */
/** @typedef {{tag: any, props: Record<string, any>, key: any, children: VNode[], el?: any, out?: VNode}} VNode */

const SVG = "http://www.w3.org/2000/svg";
const AS_PROPERTY = new Set(["value", "checked", "disabled", "hidden", "selected", "open", "indeterminate"]);
const NOTHING = /** @type {Record<string, any>} */ (Object.freeze({}));

/**
 * A node of the tree. `tag` is an element's name, or a function of its props that returns one node; such a function is
 * not called again while its props are the same.
 * @param {any} tag
 * @param {Record<string, any> | null} [props]
 * @param {...Children} children
 * @returns {VNode}
 */
export function h(tag, props, ...children) {
  const own = props ?? NOTHING;
  const flat = /** @type {VNode[]} */ ([]);
  flatten(children, flat);
  return { tag, props: own, key: own.key, children: flat };
}

/** @param {any[]} children @param {VNode[]} into */
function flatten(children, into) {
  for (const child of children) {
    if (Array.isArray(child)) flatten(child, into);
    else if (child === null || child === undefined || typeof child === "boolean") continue;
    else if (typeof child === "object") into.push(child);
    else into.push({ tag: "#text", props: { text: String(child) }, key: undefined, children: [] });
  }
}

/**
 * Makes the children of an element those of the tree.
 * @param {any} parent
 * @param {...Children} children
 */
export function render(parent, ...children) {
  const next = /** @type {VNode[]} */ ([]);
  flatten(children, next);
  patchChildren(parent, parent.rendered ?? [], next, parent.namespaceURI === SVG);
  parent.rendered = next;
}

/** @param {VNode} node @param {boolean} svg @returns {any} */
function create(node, svg) {
  if (typeof node.tag === "function") {
    node.out = called(node);
    node.el = create(node.out, svg);
    return node.el;
  }
  if (node.tag === "#text") return (node.el = document.createTextNode(node.props.text));
  const inSvg = svg || node.tag === "svg";
  const el = inSvg ? document.createElementNS(SVG, node.tag) : document.createElement(node.tag);
  node.el = el;
  for (const name in node.props) set(el, name, undefined, node.props[name]);
  patchChildren(el, [], node.children, inSvg);
  node.props.ref?.(el);
  return el;
}

/** What a function makes of its props. What an agent sends may be of any shape; it must not take the rest of the page along. @param {VNode} node @returns {VNode} */
function called(node) {
  try {
    return node.tag(node.props, node.children);
  } catch (fault) {
    console.warn(fault);
    return h("span", { class: "muted" }, "this could not be shown");
  }
}

/** @param {VNode} before @param {VNode} after @param {boolean} svg */
function patch(before, after, svg) {
  if (typeof after.tag === "function") {
    const isSame = after.children.length === 0 && before.children.length === 0 && shallowEqual(before.props, after.props);
    if (isSame) {
      after.out = before.out;
      after.el = before.el;
      return;
    }
    after.out = called(after);
    const [one, other] = /** @type {VNode[]} */ ([before.out, after.out]);
    if (one.tag === other.tag && one.key === other.key) patch(one, other, svg);
    else before.el.replaceWith(create(other, svg));
    after.el = other.el;
    return;
  }
  const el = (after.el = before.el);
  if (after.tag === "#text") {
    if (before.props.text !== after.props.text) el.data = after.props.text;
    return;
  }
  for (const name in before.props) if (!(name in after.props)) set(el, name, before.props[name], undefined);
  for (const name in after.props) {
    // What a person has typed since is not in the tree, so these are compared with the element itself.
    const old = name === "value" || name === "checked" ? el[name] : before.props[name];
    if (old !== after.props[name]) set(el, name, before.props[name], after.props[name]);
  }
  if (before.children !== after.children) patchChildren(el, before.children, after.children, svg || after.tag === "svg");
}

/** @param {any} parent @param {VNode[]} before @param {VNode[]} after @param {boolean} svg */
function patchChildren(parent, before, after, svg) {
  const keyed = new Map();
  const unkeyed = /** @type {VNode[]} */ ([]);
  for (const node of before) {
    if (node.key !== undefined) keyed.set(node.key, node);
    else unkeyed.push(node);
  }
  let at = 0;
  let place = before.length > 0 ? before[0].el : null;
  for (const node of after) {
    let old;
    if (node.key !== undefined) {
      old = keyed.get(node.key);
      if (old && old.tag === node.tag) keyed.delete(node.key);
      else old = undefined;
    } else if (unkeyed[at]?.tag === node.tag) {
      old = unkeyed[at++];
    }
    if (old) {
      const was = old.el;
      patch(old, node, svg);
      if (was === place) place = node.el.nextSibling;
      else if (node.el.nextSibling !== place || node.el.parentNode !== parent) parent.insertBefore(node.el, place);
    } else {
      const el = create(node, svg);
      parent.insertBefore(el, place);
    }
  }
  for (const node of keyed.values()) remove(node);
  for (; at < unkeyed.length; at++) remove(unkeyed[at]);
}

/** @param {VNode} node */
function remove(node) {
  node.el.remove();
}

/** @param {any} el @param {string} name @param {any} before @param {any} value */
function set(el, name, before, value) {
  if (name === "key" || name === "ref") return;
  if (name === "css") {
    for (const key in before ?? NOTHING) if (!(key in (value ?? NOTHING))) el.style.removeProperty(key);
    for (const key in value ?? NOTHING) if (before?.[key] !== value[key]) el.style.setProperty(key, value[key]);
  } else if (name.startsWith("on")) {
    el[name] = value ?? null;
  } else if (AS_PROPERTY.has(name) || (typeof value === "object" && value !== null) || typeof value === "function") {
    el[name] = value ?? (typeof before === "boolean" ? false : "");
  } else if (value === undefined || value === null || value === false) {
    el.removeAttribute(name);
  } else if (name === "href" && !/^(https?:|#|blob:)/i.test(value)) {
    el.removeAttribute(name);
  } else {
    el.setAttribute(name, value === true ? "" : value);
  }
}

/** @param {any} one @param {any} other */
export function shallowEqual(one, other) {
  if (one === other) return true;
  const names = Object.keys(one);
  if (names.length !== Object.keys(other).length) return false;
  return names.every((name) => Object.is(one[name], other[name]));
}

/**
 * Class names, without those that do not apply.
 * @param {...(string | false | null | undefined)} names
 */
export const classes = (...names) => names.filter(Boolean).join(" ");

/** A word from elsewhere as a part of a class name: it names one class, and none of another kind. @param {unknown} word */
export const classWord = (word) => String(word).replace(/[^\w-]/g, "_").slice(0, 40);

// A form that an agent asks for: fields of a flat JSON Schema. What does not fit is said beside its field, and not sent.

import { h } from "../lib/dom.js";
import { table } from "../lib/table.js";
import { plain, visible } from "../lib/text.js";
import { faultOf, fieldsOf, valueOf } from "../state/form.js";
import { begins } from "./parts.js";

/** @typedef {import("../state/form.js").Field} Field */

/** @param {{question: any, canAnswer: boolean, onanswer: (result: any, how: {choice: string, verdict?: string, content?: any}, event: Event) => void}} props */
export function Form({ question, canAnswer, onanswer }) {
  const { message, requestedSchema, mode, url } = question.params;
  if (mode === "url") {
    return h("div", null, h("p", null, visible(String(message ?? ""))), h("p", { class: "mono" }, visible(String(url ?? ""))), buttons(canAnswer, onanswer, (event) => onanswer({ action: "accept" }, { choice: "Opened", verdict: "allowed" }, event), "I have opened it"));
  }
  const fields = fieldsOf(requestedSchema);
  const submit = (event) => {
    event.preventDefault();
    const content = checked(/** @type {HTMLFormElement} */ (event.target), fields);
    if (content) onanswer({ action: "accept", content }, { choice: "Submitted", verdict: "allowed", content }, event);
  };
  return h(
    "form",
    // The browser's own bubbles go away by themselves, and know less than the schema.
    { class: "form", novalidate: true, onsubmit: submit, oninput: edited },
    h("p", null, visible(String(message ?? ""))),
    fields.map((field, at) => drawn(field, `${question.key} ${at}`)),
    buttons(canAnswer, onanswer, null, "Submit"),
  );
}

/** @param {boolean} canAnswer @param {any} onanswer @param {any} onclick @param {string} label */
function buttons(canAnswer, onanswer, onclick, label) {
  if (!canAnswer) return h("p", { class: "muted" }, "This link may look, but not answer.");
  return h(
    "div",
    { class: "choices" },
    h("button", { class: "button primary", type: onclick ? "button" : "submit", onclick }, label),
    h("button", { class: "button", type: "button", onclick: (event) => onanswer({ action: "decline" }, { choice: "Declined", verdict: "denied" }, event) }, "Decline"),
  );
}

/** @param {Field} field @param {string} id */
function drawn(field, id) {
  const { kind, label, about, isRequired } = field;
  const fault = `fault ${id}`.replace(/\W/g, "-");
  const name = h("span", null, visible(label), isRequired || kind === "yes" ? "" : h("span", { class: "muted" }, " optional"));
  // What is wrong is written here when the form is sent.
  const rest = [about ? h("span", { class: "muted" }, visible(about)) : null, h("span", { class: "fault", id: fault, role: "alert" })];
  if (kind !== "many") return h("div", { class: "field-box" }, h("label", { class: "field" }, name, input(field, fault)), rest);
  const box = ({ title }, at) => h("label", { key: at, class: "tick" }, h("input", { name: field.name, type: "checkbox", value: String(at), ref: begins("checked", field.initial.has(at)), "aria-describedby": fault }), visible(title));
  return h("fieldset", { class: "field-box" }, h("legend", null, name), field.choices.map(box), rest);
}

/** @param {Field} field @param {string} fault the name of the place where it is said what is wrong */
function input({ name, kind, type, choices, initial, isRequired, attributes }, fault) {
  const common = { name, "aria-describedby": fault };
  if (kind === "yes") return h("input", { ...common, type: "checkbox", ref: begins("checked", initial) });
  if (kind !== "one") return h("input", { ...common, ...attributes, type, ref: begins("value", initial), required: isRequired, autocomplete: "off" });
  // Nothing is chosen for a person, unless the agent says what.
  const none = h("option", { value: "", selected: initial < 0 }, isRequired ? "choose …" : "none");
  return h("select", { ...common, required: isRequired }, none, choices.map(({ title }, at) => h("option", { key: at, value: String(at), selected: at === initial }, plain(title))));
}

/** What was wrong is being mended. @param {Event} event */
function edited({ target }) {
  const box = /** @type {HTMLElement} */ (target).closest(".field-box");
  if (box) say(box, "");
}

/** @param {Element} box @param {string} fault */
function say(box, fault) {
  const place = box.querySelector(".fault");
  if (place) place.textContent = fault;
  for (const one of box.querySelectorAll("input, select")) one.setAttribute("aria-invalid", String(fault !== ""));
}

/** What was written, if all of it fits; else what does not is said, and the first such field has the focus. @param {HTMLFormElement} form @param {Field[]} fields */
function checked(form, fields) {
  const boxes = [...form.querySelectorAll(".field-box")];
  const content = table();
  const wrong = fields.filter((field, at) => {
    const value = valueOf(field, written(field, boxes[at]));
    const fault = isUnreadable(boxes[at]) ? "This is not complete, or not of its kind." : faultOf(field, value);
    say(boxes[at], fault);
    if (value !== undefined) content[field.name] = value;
    return fault !== "";
  });
  if (wrong.length === 0) return content;
  /** @type {HTMLElement | null} */ (boxes[fields.indexOf(wrong[0])].querySelector("input, select"))?.focus();
  return null;
}

/** A field of which the browser cannot make anything is empty for a script. @param {Element} box */
const isUnreadable = (box) => [...box.querySelectorAll("input")].some((one) => one.validity.badInput);

/** @param {Field} field @param {Element} box */
function written({ kind }, box) {
  if (kind === "many") return [...box.querySelectorAll("input")].filter((one) => one.checked).map((one) => Number(one.value));
  const one = /** @type {any} */ (box.querySelector("input, select"));
  if (kind === "yes") return one.checked;
  return kind === "one" ? (one.value === "" ? -1 : Number(one.value)) : one.value;
}

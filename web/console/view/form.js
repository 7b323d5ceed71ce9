// A form that an agent asks for: fields of a flat JSON Schema.

import { h } from "../lib/dom.js";
import { table } from "../lib/table.js";
import { visible } from "../lib/text.js";
import { begins } from "./parts.js";

/** @param {{question: any, canAnswer: boolean, onanswer: (result: any, how: {choice: string, verdict?: string}, event: Event) => void}} props */
export function Form({ question, canAnswer, onanswer }) {
  const { message, requestedSchema, mode, url } = question.params;
  const fields = Object.entries(requestedSchema?.properties ?? {}).filter(([, schema]) => schema !== null && typeof schema === "object");
  const required = new Set(Array.isArray(requestedSchema?.required) ? requestedSchema.required : []);
  const submit = (event) => {
    event.preventDefault();
    const content = read(/** @type {HTMLFormElement} */ (event.target), fields);
    onanswer({ action: "accept", content }, { choice: "Submitted", verdict: "allowed" }, event);
  };
  if (mode === "url") {
    return h("div", null, h("p", null, visible(String(message ?? ""))), h("p", { class: "mono" }, visible(String(url ?? ""))), buttons(canAnswer, onanswer, (event) => onanswer({ action: "accept" }, { choice: "Opened", verdict: "allowed" }, event), "I have opened it"));
  }
  return h(
    "form",
    { class: "form", onsubmit: submit },
    h("p", null, visible(String(message ?? ""))),
    fields.map(([name, schema]) => field(name, schema, required.has(name))),
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

/** @param {string} name @param {any} schema @param {boolean} isRequired */
function field(name, schema, isRequired) {
  const label = h("span", null, visible(String(schema.title ?? name)), isRequired ? "" : h("span", { class: "muted" }, " optional"));
  const about = schema.description ? h("span", { class: "muted" }, visible(String(schema.description))) : null;
  const values = schema.enum ?? schema.oneOf?.map((one) => one.const);
  const names = schema.enumNames ?? schema.oneOf?.map((one) => one.title ?? one.const) ?? values;
  let input;
  if (values) input = h("select", { name }, values.map((value, at) => h("option", { value: String(value), selected: value === schema.default }, String(names[at]))));
  else if (schema.type === "boolean") input = h("input", { name, type: "checkbox", ref: begins("checked", !!schema.default) });
  else if (schema.type === "number" || schema.type === "integer") input = h("input", { name, type: "number", step: schema.type === "integer" ? "1" : "any", ref: begins("value", String(schema.default ?? "")), required: isRequired });
  else input = h("input", { name, type: "text", ref: begins("value", String(schema.default ?? "")), required: isRequired, autocomplete: "off" });
  return h("label", { class: "field" }, label, input, about);
}

/** @param {HTMLFormElement} form @param {[string, any][]} fields */
function read(form, fields) {
  const content = table();
  for (const [name, schema] of fields) {
    const input = /** @type {any} */ (form.elements.namedItem(name));
    if (!input) continue;
    if (schema.type === "boolean") content[name] = input.checked;
    else if (input.value === "") continue;
    else content[name] = schema.type === "number" || schema.type === "integer" ? Number(input.value) : input.value;
  }
  return content;
}

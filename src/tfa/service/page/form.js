// Forms generated from the service's description of a request (/openapi.json).
import { make } from "./dom.js";

const BODY = "multipart/form-data";

/** List the fields of a request without photos, as [name, schema]. */
export function fieldsOf(openapi, path) {
  const { properties } = openapi.paths[path].post.requestBody.content[BODY].schema;
  return Object.entries(properties).filter(([name]) => name !== "image" && name !== "images");
}

/** List the members of a union, without null. */
function kindsOf(schema) {
  const members = schema.anyOf ? schema.anyOf.flatMap(kindsOf) : [schema];
  return members.filter((member) => member.type !== "null");
}

const words = (name) => name[0].toUpperCase() + name.slice(1).replaceAll("_", " ");

const select = (attributes, choices) => make("select", attributes,
  ...choices.map(([value, text]) => make("option", { value }, text)));

/** Make the input of a field; an empty value means the service's default. */
function widget(name, schema, attributes) {
  const kinds = kindsOf(schema);
  const [kind] = kinds;
  if (kind.type === "boolean") {
    const isOpen = schema.default === null || schema.default === undefined;
    return select(attributes, isOpen ? [["", "default"], ["true", "yes"], ["false", "no"]]
      : schema.default ? [["", "yes"], ["false", "no"]] : [["", "no"], ["true", "yes"]]);
  }
  if (kind.enum) return select(attributes, [["", "default"], ...kind.enum.map((value) => [value, String(value)])]);
  const shown = schema.default ?? "default";
  if (kinds.length === 1 && (kind.type === "integer" || kind.type === "number")) {
    return make("input", { ...attributes, type: "number", min: kind.minimum, max: kind.maximum,
      step: kind.type === "integer" ? 1 : "any", placeholder: shown });
  }
  const text = { ...attributes, autocomplete: "off", spellcheck: "false" };
  if (kind.type !== "array") return make("input", { ...text, type: "text", placeholder: shown });
  return kind.items.type === "string" ? make("textarea", { ...text, rows: 1, placeholder: "any, one per line" })
    : make("input", { ...text, type: "text", placeholder: "any, separated by commas" });
}

/** Make labeled inputs for the fields of a request; `made` overrides inputs by name. */
export function inputsOf(openapi, path, made = {}) {
  return fieldsOf(openapi, path).map(([name, schema]) => {
    const attributes = { name, title: schema.description };
    const input = made[name] ? made[name](attributes) : widget(name, schema, attributes);
    return make("label", { class: "field" }, `${words(name)} `, input);
  });
}

/** Return the entered values, without empty fields; the lines of a textarea become a list. */
export function entered(form) {
  const values = [...new FormData(form)].map(([name, value]) => [name, value.trim()]).filter(([, value]) => value !== "");
  const lines = (value) => value.split(/\s*\n\s*/);
  return Object.fromEntries(values.map(([name, value]) => [name, form.elements[name].matches("textarea") ? lines(value) : value]));
}

// Calls to the service, with the map's name, the API key and errors in one place.

const API_KEY = "tfa-api-key";
const MAP = "tfa-map";
const BASE = new URL(".", document.baseURI);

/** Events: "api-key-needed" when the service refuses, "access" when API key or map changed, "map-edited" after edits, "answered" with hits. */
export const events = new EventTarget();
export const announce = (name, detail) => events.dispatchEvent(new CustomEvent(name, { detail }));

export class ServiceError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

export const apiKey = () => sessionStorage.getItem(API_KEY) || "";
export function setApiKey(value) {
  if (value) sessionStorage.setItem(API_KEY, value);
  else sessionStorage.removeItem(API_KEY);
}

export const chosenMap = () => sessionStorage.getItem(MAP) || "";
export function chooseMap(name) {
  if (name) sessionStorage.setItem(MAP, name);
  else sessionStorage.removeItem(MAP);
}

const headers = () => (apiKey() ? { Authorization: `Bearer ${apiKey()}` } : {});

function address(path, query = {}) {
  const url = new URL(path, BASE);
  for (const [name, value] of Object.entries(query)) {
    if (value !== null && value !== undefined && value !== "") url.searchParams.set(name, value);
  }
  const ofOneMap = path !== "v1/maps" && path !== "openapi.json";
  if (ofOneMap && chosenMap() && !url.searchParams.has("map")) url.searchParams.set("map", chosenMap());
  return url;
}

async function send(url, options) {
  try {
    return await fetch(url, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServiceError("The service does not answer. Check that it is running and reachable, then try again.", 0);
  }
}

/** Return the error message of a response. */
async function refusal(response) {
  let sentence = null;
  try {
    sentence = (await response.json()).error;
  } catch {
    sentence = null; // such as the HTML error page of a proxy
  }
  return typeof sentence === "string" && sentence ? sentence : `The service returned ${response.status} ${response.statusText}`.trim();
}

/** Return true if another API key may help; a read key gets 403 for edits. */
export const needsApiKey = (status) => status === 401 || (status === 403 && apiKey() !== "");

/** Call a route and return its JSON; throws a ServiceError if it is refused. */
export async function call(path, { method = "GET", query, form, json, signal } = {}) {
  const options = { method, headers: headers(), signal };
  if (form) options.body = form;
  if (json !== undefined) {
    options.body = JSON.stringify(json);
    options.headers["Content-Type"] = "application/json";
  }
  const response = await send(address(path, query), options);
  if (!response.ok) {
    const error = new ServiceError(await refusal(response), response.status);
    if (needsApiKey(response.status)) announce("api-key-needed", error);
    throw error;
  }
  return response.json();
}

/** Make a form of files and fields; empty fields are left out (the service's default), a list repeats its field. */
export function formOf(name, files, fields = {}) {
  const form = new FormData();
  for (const file of files) form.append(name, file, file.name || "photo.jpg");
  for (const [key, value] of Object.entries(fields)) {
    if (value !== null && value !== undefined && value !== "") [value].flat().forEach((one) => form.append(key, String(one)));
  }
  return form;
}

/** Fetch a map image as a file, to send it as a query. */
export async function photoFile(path, name, size = 960) {
  const response = await send(address(path, { size }), { headers: headers() });
  if (!response.ok) throw new ServiceError(await refusal(response), response.status);
  return new File([await response.blob()], name, { type: "image/jpeg" });
}

/**
 * Show a map image in an <img>. An <img> cannot send an API key, so with a key the image is fetched here.
 * Only URLs of this service are followed.
 */
export async function showPhoto(image, path, size = 480) {
  const missing = () => image.classList.add("missing"); // shows the alternative text
  image.addEventListener("error", missing, { once: true });
  const url = path ? address(path, { size }) : null;
  if (!url || url.origin !== BASE.origin) return missing();
  if (!apiKey()) {
    image.src = url;
    return undefined;
  }
  try {
    const response = await send(url, { headers: headers() });
    if (!response.ok) return missing();
    const local = URL.createObjectURL(await response.blob());
    image.addEventListener("load", () => URL.revokeObjectURL(local), { once: true });
    image.src = local;
  } catch {
    missing();
  }
  return undefined;
}

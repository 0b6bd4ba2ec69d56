// Talking to /v1 from a page: the session's cookie goes along by itself, its token with every change.

export class Problem extends Error {
  /** @param {{code: string, detail: string, remedies?: string[], status?: number}} told */
  constructor(told) {
    super(told.detail);
    this.code = told.code;
    this.detail = told.detail;
    this.remedies = told.remedies ?? [];
    this.status = told.status ?? 0;
  }
}

/** Fetch, and turn what the service refuses (or a service that is gone) into a Problem. */
async function ask(address, options) {
  let response;
  try {
    response = await fetch(address, { credentials: "same-origin", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem({ code: "SERVICE_UNREACHABLE", detail: "The service does not answer; is it still running?" });
  }
  if (response.ok) return response;
  const told = await response.json().catch(() => ({ code: `HTTP_${response.status}`, detail: response.statusText }));
  if (response.status === 401) told.remedies = ["Load the page again and sign in."];
  throw new Problem(told);
}

export async function getJson(address, options = {}) {
  return (await ask(address, options)).json();
}

export async function getBytes(address, options = {}) {
  return (await ask(address, options)).arrayBuffer();
}

/** Change something; the same click is never done twice. */
export async function send(address, { method = "POST", body = null, form = null, headers = {} } = {}) {
  const token = document.querySelector('meta[name="csrf-token"]')?.content;
  const told = { ...headers };
  if (token) told["X-CSRF-Token"] = token;
  if (method === "POST") told["Idempotency-Key"] = randomKey();
  if (body !== null) told["Content-Type"] = "application/json";
  const response = await ask(address, { method, headers: told, body: form ?? (body === null ? null : JSON.stringify(body)) });
  return { location: response.headers.get("Location"), body: response.status === 204 ? null : await response.json() };
}

function randomKey() {
  // crypto.randomUUID exists on https and the loopback alone; this one is everywhere.
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** Show a problem in a place of the page that is read aloud when it changes. */
export function showProblem(place, error) {
  place.replaceChildren();
  if (!error) return;
  const shown = document.createElement("p");
  shown.className = "problem";
  const code = document.createElement("code");
  code.textContent = error.code ?? error.name;
  const detail = error.detail ?? error.message ?? String(error);
  shown.append(code, ` ${/^\w+:/.test(detail) ? detail : detail.charAt(0).toUpperCase() + detail.slice(1)}`);
  place.append(shown);
  for (const remedy of error.remedies ?? []) {
    const line = document.createElement("p");
    line.textContent = remedy;
    place.append(line);
  }
}

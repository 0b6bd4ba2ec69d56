// What every page has: the theme switch, and forms that act through /v1.
import { send, showProblem } from "./api.js";
import { csvOf } from "./tables.js";

const THEMES = { system: "Theme: as the system", light: "Theme: light", dark: "Theme: dark" };

function setUpTheme() {
  const button = document.querySelector("[data-theme-switch]");
  const now = () => document.documentElement.dataset.theme ?? "system";
  const show = () => (button.textContent = THEMES[now()]);
  button.hidden = false;
  button.addEventListener("click", () => {
    const order = Object.keys(THEMES);
    const next = order[(order.indexOf(now()) + 1) % order.length];
    if (next === "system") {
      delete document.documentElement.dataset.theme;
      localStorage.removeItem("moeplan-theme");
    } else {
      document.documentElement.dataset.theme = next;
      localStorage.setItem("moeplan-theme", next);
    }
    show();
    announceTheme();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", announceTheme);
  show();
}

/** Canvases hold colours as pixels: whoever drew one draws it again. */
function announceTheme() {
  document.dispatchEvent(new CustomEvent("moeplan:theme"));
}

/**
 * A form with data-action sends its fields as JSON to that address.
 *
 * Empty fields are left out; data-type="number", "list" and "json" say what a text stands for; data-then says where to
 * go: "reload", or an address in which {id} and {job_id} are those of the answer.
 */
function setUpActions() {
  for (const form of document.querySelectorAll("form[data-action]")) {
    const place = document.createElement("div");
    place.setAttribute("role", "alert");
    form.after(place);
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      const buttons = form.querySelectorAll("button");
      showProblem(place, null);
      buttons.forEach((button) => (button.disabled = true));
      try {
        const { action, method = "POST", then = "reload", ifMatch } = form.dataset;
        const headers = ifMatch ? { "If-Match": ifMatch } : {};
        const { body } = await send(action, { method, body: fieldsOf(form), headers });
        if (then === "reload") location.reload();
        else location.assign(then.replace(/\{(\w+)\}/g, (_, name) => body?.[name] ?? ""));
      } catch (error) {
        showProblem(place, error);
        buttons.forEach((button) => (button.disabled = false));
      }
    });
  }
}

function fieldsOf(form) {
  const told = {};
  for (const field of form.elements) {
    if (!field.name || field.disabled || (field.type === "checkbox" && !field.checked)) continue;
    const text = field.type === "checkbox" ? field.value : field.value.trim();
    const kind = field.dataset.type;
    if (kind === "list") {
      const chosen = field.type === "checkbox" ? [text] : Array.from(field.selectedOptions, (each) => each.value);
      told[field.name] = [...(told[field.name] ?? []), ...chosen];
    } else if (text !== "") {
      told[field.name] = kind === "number" ? Number(text) : kind === "json" ? JSON.parse(text) : text;
    }
  }
  return told;
}

/** A table with data-csv can be taken along as a file of that name. */
function setUpDownloads() {
  for (const made of document.querySelectorAll("table[data-csv]")) (made.closest(".scroll") ?? made).after(csvOf(made, made.dataset.csv));
}

setUpTheme();
setUpActions();
setUpDownloads();

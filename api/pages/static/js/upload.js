// Uploading a recording: by the file field or by dropping files on the form, with progress.
import { Problem, showProblem } from "./api.js";

const form = document.querySelector("[data-upload]");

if (form) {
  const files = form.querySelector('input[type="file"]');
  const state = form.querySelector("[data-upload-state]");

  for (const kind of ["dragover", "dragleave", "drop"]) {
    form.addEventListener(kind, (event) => {
      event.preventDefault();
      form.classList.toggle("over", kind === "dragover");
      if (kind === "drop" && event.dataTransfer.files.length) files.files = event.dataTransfer.files;
    });
  }

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const button = form.querySelector("button");
    button.disabled = true;
    try {
      const body = new FormData(form);
      for (const name of ["name", "engine_id"]) if (!body.get(name)) body.delete(name);
      const trace = await post(body, (share) => (state.textContent = `Uploading: ${Math.round(100 * share)} %`));
      state.textContent = "Taken in; reading it.";
      location.assign(`/traces/${trace.id}`);
    } catch (error) {
      showProblem(state, error);
      button.disabled = false;
    }
  });
}

/** Send a form with XMLHttpRequest: fetch does not tell how much has been sent. */
function post(body, onProgress) {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open("POST", "/v1/traces");
    const token = document.querySelector('meta[name="csrf-token"]')?.content;
    if (token) request.setRequestHeader("X-CSRF-Token", token);
    request.responseType = "json";
    request.upload.addEventListener("progress", (event) => event.lengthComputable && onProgress(event.loaded / event.total));
    request.addEventListener("load", () => {
      if (request.status < 300) resolve(request.response);
      else reject(new Problem(request.response ?? { code: `HTTP_${request.status}`, detail: request.statusText }));
    });
    request.addEventListener("error", () => {
      reject(new Problem({ code: "UPLOAD_BROKEN", detail: "The upload broke off; is the service still running?" }));
    });
    request.send(body);
  });
}

// Shows a rollout's states as they happen: when its job tells something and the state is another, the page is loaded anew.
import { getJson } from "./api.js";

const place = document.querySelector("[data-rollout]");
const { rollout, state } = place.dataset;
let asked = null;

document.addEventListener("moeplan:progress", () => {
  // Events before the page was loaded come again, many at once: one question is enough.
  asked ??= setTimeout(look, 250);
});

async function look() {
  asked = null;
  try {
    if ((await getJson(`/v1/rollouts/${rollout}`)).state !== state) location.reload();
  } catch (error) {
    console.info(`the rollout was not read: ${error.message}`); // the next event asks again; its job's end reloads the page
  }
}

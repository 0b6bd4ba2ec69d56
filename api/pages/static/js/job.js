// Follows jobs by their events. EventSource reconnects by itself and says where it was (Last-Event-ID).

for (const place of document.querySelectorAll("[data-job]")) follow(place);

function follow(place) {
  const step = place.querySelector("[data-job-step]");
  const bar = place.querySelector("progress");
  const source = new EventSource(`/v1/jobs/${place.dataset.job}/events`);
  source.addEventListener("progress", (event) => {
    const told = JSON.parse(event.data);
    bar.value = told.progress;
    if (told.step) step.textContent = told.step;
    document.dispatchEvent(new CustomEvent("moeplan:progress", { detail: told }));
  });
  source.addEventListener("search", (event) => {
    const detail = { number: Number(event.lastEventId), ...JSON.parse(event.data) };
    document.dispatchEvent(new CustomEvent("moeplan:search", { detail }));
  });
  source.addEventListener("state", (event) => {
    const told = JSON.parse(event.data);
    step.textContent = told.sentence;
    if (["succeeded", "failed", "cancelled"].includes(told.state)) {
      source.close();
      location.reload();
    }
  });
}

// Runs before the page is drawn, so that nobody sees the other theme flash by. A classic script for that reason.
(() => {
  "use strict";
  const chosen = localStorage.getItem("moeplan-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();

// Sets the theme before the first paint (a classic script in <head>, so nothing flashes) and keeps it.
// The account's choice comes from the server in data-theme-choice; the browser's copy covers the sign-in page.
(() => {
  const root = document.documentElement;
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const kept = () => {
    try {
      return localStorage.getItem("gpuplane-theme") || "";
    } catch {
      return "";
    }
  };
  const signedIn = root.dataset.signedIn === "1";
  let choice = signedIn ? root.dataset.themeChoice || "" : kept();
  const apply = () => {
    const theme = choice || (dark.matches ? "dark" : "light");
    root.dataset.bsTheme = theme;
    root.dataset.themeChoice = choice;
    document.querySelectorAll("[data-theme-set]").forEach((button) => {
      button.setAttribute("aria-pressed", String(button.dataset.themeSet === choice));
    });
    document.dispatchEvent(new CustomEvent("gpuplane:theme", { detail: theme }));
  };
  const keep = () => {
    try {
      localStorage.setItem("gpuplane-theme", choice);
    } catch {
      // A browser without storage still has the choice for this page.
    }
  };
  if (signedIn) keep();
  apply();
  dark.addEventListener("change", apply);
  document.addEventListener("DOMContentLoaded", apply);
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-theme-set]");
    if (!button) return;
    choice = button.dataset.themeSet;
    keep();
    apply();
    const form = button.closest("form");
    if (form && signedIn) {
      const body = new FormData(form);
      body.set("theme", choice);
      fetch(form.action, { method: "POST", body, headers: { "X-Requested-With": "fetch" } });
      event.preventDefault();
    }
  });
})();

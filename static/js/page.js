// What every page needs: confirmations before a dangerous form, and filters that submit themselves.
const dialog = document.getElementById("ask");
let waiting = null;

document.addEventListener("submit", (event) => {
  const form = event.target;
  const { ask: asked, confirmed } = form.dataset;
  delete form.dataset.confirmed;
  if (!asked || confirmed || !dialog) {
    if (form.method === "post") sendOnce(event);
    return;
  }
  event.preventDefault();
  waiting = { form, submitter: event.submitter };
  form.dataset.asking = "1"; // a refresh leaves it where it is
  dialog.querySelector("#ask-title").textContent = asked;
  dialog.querySelector("#ask-text").textContent = form.dataset.askText || "";
  dialog.querySelector("#ask-yes").textContent = form.dataset.askYes || "Continue";
  dialog.returnValue = "no";
  dialog.showModal();
});

dialog?.addEventListener("close", () => {
  if (!waiting) return;
  const { form, submitter } = waiting;
  waiting = null;
  delete form.dataset.asking;
  if (dialog.returnValue !== "yes") return;
  form.dataset.confirmed = "1";
  form.requestSubmit(submitter);
});

// A second click while the first is answered would do it twice; whoever stopped the first may send again in a while.
const SENT_MS = 10_000;

function sendOnce(event) {
  if (event.defaultPrevented) return;
  const now = performance.now();
  if (now - Number(event.target.dataset.sent ?? -SENT_MS) < SENT_MS) event.preventDefault();
  else event.target.dataset.sent = String(now);
}

// A page that comes back as it was left has its forms ready again.
window.addEventListener("pageshow", (event) => {
  if (!event.persisted) return;
  for (const form of document.querySelectorAll("form[data-sent]")) delete form.dataset.sent;
});

// Filter forms: a changed choice applies at once, typing after a pause. Whoever types stays where they are: only what
// is found is replaced, and the form's words about it, so that what is typed meanwhile is kept.
let pause = 0;
let asking = null;
const besidesFields = (form) =>
  [...form.children].filter(
    (child) => !child.matches("input, select, button") && !child.querySelector("input, select"),
  );

async function find(form) {
  const query = new URLSearchParams(new FormData(form)).toString();
  const address = query ? `${location.pathname}?${query}` : location.pathname;
  asking?.abort();
  asking = new AbortController();
  try {
    const answer = await fetch(address, { signal: asking.signal });
    const found = new DOMParser().parseFromString(await answer.text(), "text/html");
    const [rows, words] = [found.getElementById("rows"), found.querySelector("form[data-filters]")];
    if (!answer.ok || answer.redirected || !rows || !words) return location.assign(address);
    document.getElementById("rows").replaceWith(rows);
    for (const old of besidesFields(form)) old.remove();
    form.append(...besidesFields(words));
    history.replaceState(null, "", address);
    window.htmx.process(rows);
  } catch (error) {
    if (error.name !== "AbortError") form.requestSubmit(); // the browser says what is wrong
  }
}

document.addEventListener("change", (event) => {
  const form = event.target.closest("form[data-filters]");
  if (form && event.target.matches("select, input[type=checkbox]")) form.requestSubmit();
});
document.addEventListener("input", (event) => {
  const form = event.target.closest("form[data-filters]");
  if (!form || !event.target.matches("input[type=search], input[type=text]")) return;
  clearTimeout(pause);
  pause = setTimeout(() => find(form), 450);
});
// Empty fields do not belong in the address.
document.addEventListener("formdata", (event) => {
  if (!event.target.matches("form[data-filters]")) return;
  for (const [name, value] of [...event.formData.entries()]) if (value === "") event.formData.delete(name);
});
document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-fill]");
  if (!button) return;
  const target = document.querySelector(button.dataset.fill);
  const source = document.querySelector(button.dataset.fillFrom);
  if (target && source) target.value = `${source.textContent.trim()}\n`;
});
// A signed-out session answers a refresh with an address to go to; a broken connection is said once.
document.body.addEventListener("htmx:sendError", () => document.body.classList.add("offline"));
document.body.addEventListener("htmx:afterOnLoad", () => document.body.classList.remove("offline"));

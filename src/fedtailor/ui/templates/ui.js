"use strict";
// Lists that filter and pages that keep up with their runs, and pictures on their way to a model.
(() => {
  const byId = (name) => document.getElementById(name);

  // --- the list ---
  const filter = byId("filter");

  function narrow() {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const rows = [...document.querySelectorAll("#runs tbody tr")];
    rows.forEach((row) => (row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word))));
    const chosen = document.querySelectorAll("#runs input:checked").length;
    const seen = rows.filter((row) => !row.hidden).length;
    byId("count").textContent = (seen < rows.length ? seen + " of " + rows.length + " shown. " : "") + (chosen ? chosen + " chosen." : "");
    byId("compare").disabled = chosen < 2;
  }

  function ago() {
    document.querySelectorAll("time[data-seconds]").forEach((it) => {
      const minutes = Math.round((Date.now() / 1000 - Number(it.dataset.seconds)) / 60);
      it.title = it.title || it.textContent;
      if (minutes < 60) it.textContent = minutes < 1 ? "just now" : minutes + " min ago";
      else if (minutes < 48 * 60) it.textContent = Math.round(minutes / 60) + " h ago";
    });
  }

  if (filter) {
    filter.addEventListener("input", narrow);
    byId("list").addEventListener("change", narrow);
    narrow();
    ago();
  }

  // --- what changes while one looks ---
  const EVERY = 2000; // milliseconds

  function remember(area) {
    const sorted = [...area.querySelectorAll("table[data-sortable]")].map((table) => {
      const heads = [...table.tHead.rows[0].cells];
      const i = heads.findIndex((head) => head.hasAttribute("aria-sort"));
      return [table.id, i, i >= 0 && heads[i].getAttribute("aria-sort") === "descending"];
    });
    return {
      sorted: sorted.filter((it) => it[1] >= 0),
      open: [...area.querySelectorAll("details[open]")].map((it) => it.id),
      chosen: [...area.querySelectorAll("input:checked")].map((it) => it.value),
      typed: [...area.querySelectorAll("input[id]")].map((it) => [it.id, it.value]),
      scrolled: [...area.querySelectorAll(".scroll")].map((it) => [it.getAttribute("aria-label"), it.scrollLeft, it.scrollTop]),
      focus: path(document.activeElement, area),
    };
  }

  // Where the focus is, in a way that holds for the next version of the same page.
  function path(element, area) {
    if (!element || !area.contains(element)) return null;
    if (element.id) return "#" + CSS.escape(element.id);
    const steps = [];
    for (let it = element; it !== area; it = it.parentElement) steps.unshift(":nth-child(" + ([...it.parentElement.children].indexOf(it) + 1) + ")");
    return ":scope > " + steps.join(" > ");
  }

  function recall(area, was) {
    was.sorted.forEach(([id, i, falling]) => byId(id) && fedtailor.sort(byId(id), i, falling));
    was.open.forEach((id) => id && byId(id) && (byId(id).open = true));
    area.querySelectorAll("input[type=checkbox]").forEach((it) => (it.checked = was.chosen.includes(it.value)));
    was.typed.forEach(([id, value]) => byId(id) && (byId(id).value = value));
    was.scrolled.forEach(([name, left, top]) => {
      const it = area.querySelector('.scroll[aria-label="' + CSS.escape(name) + '"]');
      if (it) it.scrollTo(left, top);
    });
    const focus = was.focus && area.querySelector(was.focus);
    if (focus) focus.focus({ preventScroll: true });
  }

  async function poll(area) {
    const now = area.querySelector("[data-state]");
    if (now.dataset.over !== undefined) return; // this run has ended
    if (!document.hidden) {
      try {
        const answer = await fetch(area.dataset.poll + "?since=" + now.dataset.state);
        if (answer.status === 200) {
          const was = remember(area);
          area.innerHTML = await answer.text(); // of this server, which escapes what is not its own
          fedtailor.prepare(area);
          recall(area, was);
          if (filter) { narrow(); ago(); }
        }
      } catch {
        const told = area.querySelector("[role=status]");
        if (told) told.textContent = "The server does not answer; was it stopped?";
      }
    }
    setTimeout(poll, EVERY, area);
  }

  document.querySelectorAll("[data-poll]").forEach((area) => setTimeout(poll, EVERY, area));

  // --- a picture ---
  const look = byId("look");
  if (look) {
    const drop = byId("drop"), picture = byId("picture"), shown = byId("shown"), answers = byId("answers");
    let file = null, turn = 0;

    async function ask() {
      if (!file) return;
      const mine = ++turn;
      answers.textContent = "Looking …";
      if (file.size > Number(look.dataset.most)) {
        answers.textContent = "";
        const told = document.createElement("p");
        told.className = "failed";
        told.setAttribute("role", "alert");
        told.textContent = "The file has " + (file.size / 1e6).toFixed(1) + " MB; " + look.dataset.most / 1e6 + " MB are the most that is taken.";
        answers.append(told);
        return;
      }
      let text = "";
      try {
        const answer = await fetch(look.dataset.to + "?client=" + encodeURIComponent(byId("client").value), { method: "POST", body: file });
        text = await answer.text();
      } catch {
        text = '<p class="failed" role="alert">The server does not answer; was it stopped?</p>';
      }
      if (mine === turn) answers.innerHTML = text; // of this server, which escapes what is not its own
    }

    function take(given) {
      if (!given) return;
      file = given;
      URL.revokeObjectURL(shown.src);
      shown.hidden = true;
      shown.src = URL.createObjectURL(file);
      shown.alt = "the picture " + file.name;
      ask();
    }

    shown.addEventListener("load", () => (shown.hidden = false));
    picture.addEventListener("change", () => take(picture.files[0]));
    byId("client").addEventListener("change", ask);
    ["dragenter", "dragover"].forEach((name) => drop.addEventListener(name, (event) => { event.preventDefault(); drop.classList.add("over"); }));
    ["dragleave", "drop"].forEach((name) => drop.addEventListener(name, (event) => { event.preventDefault(); drop.classList.remove("over"); }));
    drop.addEventListener("drop", (event) => take(event.dataTransfer.files[0]));
  }
})();

"use strict";
// Tables that sort by their headings, matrices that can be read cell by cell, and folded parts that open when linked to.
const fedtailor = (() => {
  const cell = (row, i) => row.cells[i];
  const value = (it) => (it.dataset.value === undefined ? it.textContent.trim() : Number(it.dataset.value));

  function compare(a, b) {
    if (typeof a === typeof b) return typeof a === "number" ? a - b : a.localeCompare(b, undefined, { numeric: true });
    return typeof a === "number" ? -1 : 1; // what has no number comes last
  }

  function sort(table, i, falling) {
    const rows = [...table.tBodies[0].rows].map((row, place) => ({ row, place, key: value(cell(row, i)) }));
    rows.sort((a, b) => {
      const mixed = typeof a.key !== typeof b.key;
      return compare(a.key, b.key) * (falling && !mixed ? -1 : 1) || a.place - b.place;
    });
    table.tBodies[0].append(...rows.map((it) => it.row));
    [...table.tHead.rows[0].cells].forEach((head, j) => {
      if (i === j) head.setAttribute("aria-sort", falling ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
  }

  function sortable(table) {
    [...table.tHead.rows[0].cells].forEach((head, i) => {
      if (!head.textContent.trim()) return;
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      const numbers = head.classList.contains("number"); // the largest first, names from A on
      button.addEventListener("click", () => {
        const now = head.getAttribute("aria-sort");
        sort(table, i, now === null ? numbers : now === "ascending");
      });
    });
  }

  function readable(area) {
    const svg = area.querySelector("svg"), here = area.querySelector(".here");
    const reading = area.parentElement.querySelector(".reading");
    const values = JSON.parse(area.dataset.values);
    const [left, top] = JSON.parse(svg.dataset.corner), [width, height] = JSON.parse(svg.dataset.cell);
    const names = [...svg.querySelectorAll(".name")].map((it) => (it.querySelector("title") || it).textContent);
    const down = names.slice(0, values.length), across = names.slice(values.length);
    let at = [-1, -1];

    function show(row, column) {
      if (row < 0 || column < 0 || row >= down.length || column >= across.length) return;
      at = [row, column];
      here.setAttribute("x", left + column * width);
      here.setAttribute("y", top + row * height);
      here.setAttribute("visibility", "visible");
      reading.textContent = down[row] + area.dataset.joint + across[column] + ": " + values[row][column] + area.dataset.unit;
    }

    svg.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect();
      show(Math.floor((event.clientY - box.top - top) / height), Math.floor((event.clientX - box.left - left) / width));
    });
    area.addEventListener("keydown", (event) => {
      const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
      if (!step) return;
      event.preventDefault();
      show(...(at[0] < 0 ? [0, 0] : [at[0] + step[0], at[1] + step[1]]));
      const x = left + at[1] * width; // names stay in sight where there is room for both
      if (x + width > area.scrollLeft + area.clientWidth) area.scrollLeft = x + width - area.clientWidth;
      if (x < area.scrollLeft + Math.min(left, area.clientWidth / 2)) area.scrollLeft = x - left;
    });
  }

  function prepare(root) {
    root.querySelectorAll("table[data-sortable]").forEach(sortable);
    root.querySelectorAll("[data-grid]").forEach(readable);
  }

  function reveal() {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (target instanceof HTMLDetailsElement) target.open = true;
    if (target) target.scrollIntoView();
  }

  prepare(document);
  addEventListener("hashchange", reveal);
  if (location.hash) reveal();
  addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((it) => (it.open = true)));
  return { prepare, sort };
})();

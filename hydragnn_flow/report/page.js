"use strict";
// Without this script the page shows the same; with it figures answer the pointer, and the table of
// trials can be filtered and sorted.
const table = document.querySelector("#trials table");
const headings = table ? [...table.tHead.rows[0].cells].map(cell => cell.textContent) : [];
const rows = table ? [...table.tBodies[0].rows] : [];
const words = rows.map(row => [...row.cells].map(cell => cell.textContent));

function about(label) {
  const [kind, number] = label.split(" ");
  const found = kind === "trial" && words.find(cells => cells[0] === number);
  if (!found) return label;
  return headings.map((name, i) => [name, found[i]]).filter(([, value]) => value)
    .map(([name, value]) => `${name} ${value}`).join("\n");
}

for (const figure of document.querySelectorAll("figure[data-marks]")) {
  const marks = JSON.parse(figure.dataset.marks);
  const image = figure.querySelector("img");
  const tip = document.createElement("div"), spot = document.createElement("div");
  tip.className = "tip"; spot.className = "spot";
  tip.hidden = spot.hidden = true;
  figure.append(spot, tip);
  figure.addEventListener("pointerleave", () => { tip.hidden = spot.hidden = true; });
  figure.addEventListener("pointermove", event => {
    const box = image.getBoundingClientRect(), frame = figure.getBoundingClientRect();
    let best = null, least = 18;
    for (const [x, y, label] of marks) {
      const left = box.left + x / 1000 * box.width, top = box.top + y / 1000 * box.height;
      const far = Math.hypot(event.clientX - left, event.clientY - top);
      if (far < least) {
        least = far;
        best = [left - frame.left + figure.scrollLeft, top - frame.top, label];
      }
    }
    tip.hidden = spot.hidden = !best;
    if (!best) return;
    tip.textContent = about(best[2]);
    spot.style.left = best[0] + "px"; spot.style.top = best[1] + "px";
    const left = Math.min(best[0] + 14, figure.scrollLeft + frame.width - tip.offsetWidth - 4);
    tip.style.left = Math.max(left, figure.scrollLeft) + "px"; tip.style.top = best[1] + 14 + "px";
  });
}

const number = text => text === "" ? NaN : Number(text.replaceAll(",", ""));
const tests = {
  "<": (a, b) => a < b, ">": (a, b) => a > b, "<=": (a, b) => a <= b, ">=": (a, b) => a >= b, "=": (a, b) => a === b,
};

function keeps(cells, word) {
  const found = word.match(/^(.+?)(<=|>=|<|>|=)(.+)$/);
  const column = found ? headings.findIndex(name => name.toLowerCase().replaceAll(" ", "_") === found[1]) : -1;
  if (column < 0) return cells.some(cell => cell.toLowerCase().includes(word));
  const cell = cells[column];
  if (found[2] === "=" && cell.toLowerCase() === found[3]) return true;
  return tests[found[2]](number(cell), number(found[3]));
}

if (rows.length > 1) {
  const bar = document.createElement("label"), input = document.createElement("input");
  const count = document.createElement("span");
  bar.className = "filter";
  input.type = "search"; input.placeholder = "complete hidden_dim>=64";
  const show = () => {
    const asked = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    rows.forEach((row, i) => {
      row.hidden = !asked.every(word => keeps(words[i], word));
      shown += !row.hidden;
    });
    count.textContent = `${shown} of ${rows.length}`;
  };
  input.addEventListener("input", show);
  bar.append("filter", input, count);
  table.closest(".scroll").before(bar);
  show();
  [...table.tHead.rows[0].cells].forEach((cell, column) => {
    const button = document.createElement("button");
    button.append(...cell.childNodes);
    cell.append(button);
    button.addEventListener("click", () => {
      const down = cell.getAttribute("aria-sort") === "ascending";
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      cell.setAttribute("aria-sort", down ? "descending" : "ascending");
      const key = rows.map((row, i) => [row, words[i][column], number(words[i][column])]);
      key.sort(([, a, x], [, b, y]) => {
        if (!a || !b) return (a ? 0 : 1) - (b ? 0 : 1);
        const order = isNaN(x) || isNaN(y) ? a.localeCompare(b) : x - y;
        return down ? -order : order;
      });
      table.tBodies[0].append(...key.map(([row]) => row));
    });
  });
}

addEventListener("beforeprint", () => { for (const d of document.querySelectorAll("details")) d.open = true; });

"use strict";
// Without this script the page shows the same; with it the table of trials can be filtered and sorted.
const table = document.querySelector("#trials table");
// A column is filtered by its name in small letters, without its unit.
const plain = cell => cell.textContent.toLowerCase().replace(/ \[.*\]$/, "").replaceAll(" ", "_");
const headings = table ? [...table.tHead.rows[0].cells].map(plain) : [];
const rows = table ? [...table.tBodies[0].rows] : [];
const words = rows.map(row => [...row.cells].map(cell => cell.textContent));

const number = text => text === "" ? NaN : Number(text.replaceAll(",", ""));
const tests = {
  "<": (a, b) => a < b, ">": (a, b) => a > b, "<=": (a, b) => a <= b, ">=": (a, b) => a >= b, "=": (a, b) => a === b,
};

function keeps(cells, word) {
  const found = word.match(/^(.+?)(<=|>=|<|>|=)(.+)$/);
  const column = found ? headings.indexOf(found[1]) : -1;
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

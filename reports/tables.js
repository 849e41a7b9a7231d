"use strict";
// Tables that sort and filter, in every page of reports; in report.html page.js follows.
const SCALES = { ns: 1e-9, us: 1e-6, ms: 1e-3, s: 1, B: 1, kB: 1e3, MB: 1e6, GB: 1e9, TB: 1e12,
  KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30, "B/s": 1, "kB/s": 1e3, "MB/s": 1e6, "GB/s": 1e9, "TB/s": 1e12,
  "kflop/s": 1e3, "Mflop/s": 1e6, "Gflop/s": 1e9, "Tflop/s": 1e12, "Pflop/s": 1e15 };
const MANY = 6;

function valueOf(text) {
  const found = /^(?:at least |at most |within |above |\+)?(-?[\d,]*\.?\d+(?:e[+-]?\d+)?)\s*([A-Za-z]+(?:\/s)?)?/.exec(text);
  return found ? Number(found[1].replaceAll(",", "")) * (SCALES[found[2]] ?? 1) : null;
}

function key(cell) {
  const number = cell.querySelector("[data-s]");
  const text = cell.textContent.trim();
  return number && text.startsWith(number.textContent) ? Number(number.dataset.s) : valueOf(text) ?? text;
}

const WORDS_IN_ORDER = new Intl.Collator(); // many times as quick as localeCompare

function compare(one, other) { // numbers first, then words; what is not known last
  const rank = (value) => (typeof value === "number" ? 0 : value === "" || value === "–" ? 2 : 1);
  return rank(one) - rank(other) || (typeof one === "number" ? one - other : WORDS_IN_ORDER.compare(one, other));
}

function sorted(items, keys, down) { // what is not known stays last in both directions
  return items.map((item, at) => [keys[at], item]).sort(([one], [other]) => {
    const order = compare(one, other);
    return down && typeof one === typeof other && ![one, other].some((value) => value === "" || value === "–") ? -order : order;
  }).map(([, item]) => item);
}

function sortButton(head, act) {
  const button = document.createElement("button");
  button.type = "button";
  button.append(...head.childNodes);
  button.addEventListener("click", act);
  head.append(button);
}

function totalOf(rows) { // the last row, if it alone has a bold name: it stays below what it adds up
  const bold = rows.filter((row) => row.cells[0].firstElementChild?.tagName === "STRONG");
  return bold.length === 1 && bold[0] === rows.at(-1) ? bold[0] : null;
}

function dress(table) {
  const body = table.tBodies[0];
  if (!body || table.classList.contains("fall")) return; // a waterfall has an order
  const heads = [...table.tHead.rows[0].cells];
  if (body.rows.length < 2 || !table.tHead.textContent.trim()) return;
  const total = totalOf([...body.rows]);
  heads.forEach((head, at) => head.textContent.trim() && sortButton(head, () => {
    const down = head.getAttribute("aria-sort") === "ascending";
    heads.forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const rows = [...body.rows].filter((row) => row !== total);
    body.append(...sorted(rows, rows.map((row) => key(row.cells[at])), down), ...(total ? [total] : []));
  }));
  if (body.rows.length <= MANY) return;
  const label = document.createElement("label"), input = document.createElement("input");
  label.className = "filter";
  input.type = "search";
  label.append("Only rows with ", input);
  input.addEventListener("input", () => {
    const words = input.value.toLowerCase().split(/\s+/);
    for (const row of body.rows) row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word));
  });
  table.parentElement.before(label);
}

document.querySelectorAll("table").forEach(dress);
if (!document.getElementById("tip")) { // a page without a table of all records
  for (const number of document.querySelectorAll(".n[data-s]")) {
    number.title = `${number.classList[1]}: ${number.dataset.s} s, record ${number.dataset.r}`;
  }
}

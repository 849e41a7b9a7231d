"use strict";
// Tables that sort and filter, the record behind a number, and all records, of which only the rows
// in sight are in the page. Text goes in as text, never as markup.
const SCALES = { ns: 1e-9, us: 1e-6, ms: 1e-3, s: 1, B: 1, kB: 1e3, MB: 1e6, GB: 1e9, TB: 1e12,
  KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30, "B/s": 1, "kB/s": 1e3, "MB/s": 1e6, "GB/s": 1e9, "TB/s": 1e12,
  "kflop/s": 1e3, "Mflop/s": 1e6, "Gflop/s": 1e9, "Tflop/s": 1e12, "Pflop/s": 1e15 };
const MANY = 6, ROW = 22;
const tip = document.getElementById("tip");

function valueOf(text) {
  const found = /^(?:at least |at most |within |above |\+)?(-?[\d,]*\.?\d+(?:e[+-]?\d+)?)\s*([A-Za-z]+(?:\/s)?)?/.exec(text);
  return found ? Number(found[1].replaceAll(",", "")) * (SCALES[found[2]] ?? 1) : null;
}

function key(cell) {
  const number = cell.querySelector("[data-s]");
  const text = cell.textContent.trim();
  return number && text.startsWith(number.textContent) ? Number(number.dataset.s) : valueOf(text) ?? text;
}

function compare(one, other) { // numbers first, then words; what is not known last
  const rank = (value) => (typeof value === "number" ? 0 : value === "" || value === "–" ? 2 : 1);
  return rank(one) - rank(other) || (typeof one === "number" ? one - other : String(one).localeCompare(other));
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

function dress(table) {
  const body = table.tBodies[0];
  if (!body) return;
  const heads = [...table.tHead.rows[0].cells];
  const numbers = [...table.querySelectorAll(".n")];
  const sources = new Set(numbers.map((number) => number.classList[1]));
  if (sources.size) {
    const said = document.createElement("p");
    said.className = "made";
    said.textContent = `Times here: ${[...sources].join(" and ")}`;
    table.parentElement.before(said);
  }
  numbers.forEach((number, at) => { number.setAttribute("role", "button"); if (!at) number.tabIndex = 0; });
  if (body.rows.length < 2 || !table.tHead.textContent.trim()) return;
  heads.forEach((head, at) => head.textContent.trim() && sortButton(head, () => {
    const down = head.getAttribute("aria-sort") === "ascending";
    heads.forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const rows = [...body.rows];
    body.append(...sorted(rows, rows.map((row) => key(row.cells[at])), down));
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

function unitOf(seconds) { return ["s", "ms", "us"].find((name) => seconds >= SCALES[name]) ?? "ns"; }

function inUnit(seconds, unit, digits) { return Number((seconds / SCALES[unit]).toPrecision(digits)); }

let unpacking = null;
function unpacked() { // once, when somebody asks
  unpacking ??= (async () => {
    const bytes = Uint8Array.from(atob(document.getElementById("packed").textContent), (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    const columns = await new Response(stream).json();
    const byId = new Map(columns.id.map((id, at) => [id, at]));
    const word = (name, at) => columns[name].words[columns[name].at[at]];
    return { columns, byId, word, size: columns.id.length };
  })();
  return unpacking;
}

async function explain(number) {
  const { columns, byId, word } = await unpacked();
  const at = byId.get(number.dataset.r);
  const unit = unitOf(Number(number.dataset.s));
  const ends = at !== undefined && columns.low_s[at] !== null
    ? `, 95 %: ${inUnit(columns.low_s[at], unit, 6)} to ${inUnit(columns.high_s[at], unit, 6)} ${unit}` : "";
  const lines = [`${number.classList[1]}: ${inUnit(number.dataset.s, unit, 12)} ${unit}${ends}`];
  if (at === undefined) return [...lines, `record ${number.dataset.r}`].join("\n");
  lines.push(`${word("op", at)} / ${word("implementation", at)}, ${word("case", at)} ${word("how", at)}`);
  if (word("machine", at)) lines.push(`on machine ${word("machine", at)}`);
  return [...lines, word("origin", at), `record ${number.dataset.r}`].join("\n");
}

let pointed = null;
async function show(number) {
  pointed = number;
  const text = number && await explain(number);
  if (pointed !== number) return;
  tip.hidden = !number;
  if (!number) return;
  tip.textContent = text;
  const box = number.getBoundingClientRect();
  const left = Math.max(8, Math.min(box.left, innerWidth - tip.offsetWidth - 8));
  const below = box.bottom + 6;
  Object.assign(tip.style, { left: `${left}px`,
    top: `${below + tip.offsetHeight < innerHeight ? below : Math.max(8, box.top - tip.offsetHeight - 6)}px` });
}

for (const [enter, leave] of [["mouseover", "mouseout"], ["focusin", "focusout"]]) {
  document.addEventListener(enter, (event) => { const number = event.target.closest(".n[data-r]"); if (number) show(number); });
  document.addEventListener(leave, (event) => { if (event.target.closest(".n[data-r]")) show(null); });
}
document.addEventListener("click", (event) => {
  const number = event.target.closest(".n[data-r]");
  if (number) choose(number.dataset.r);
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") show(null);
  const number = event.target.closest?.(".n[data-r]");
  if (!number) return;
  if (event.key === "Enter") return void choose(number.dataset.r);
  const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
  const table = number.closest("table");
  if (!step || !table) return;
  const all = [...table.querySelectorAll("tr:not([hidden]) .n[data-r]")];
  const next = all[all.indexOf(number) + step];
  if (!next) return;
  event.preventDefault();
  number.tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
});

const COLUMNS = ["source", "op", "implementation", "case", "median_s", "how", "status", "machine", "origin"];
const rowsBox = document.getElementById("records-rows"), filterBox = document.getElementById("records-filter");
const list = document.createElement("div"), head = document.createElement("div"), space = document.createElement("div");
let order = [], chosen = null, by = null, falling = false, wanted = "";

function cellText(found, name, at) {
  if (name !== "median_s") return found.word(name, at);
  const seconds = found.columns.median_s[at];
  return seconds === null ? found.word("reason", at) || "–" : `${inUnit(seconds, unitOf(seconds), 4)} ${unitOf(seconds)}`;
}

async function draw() {
  const found = await unpacked();
  const first = Math.max(0, Math.floor(rowsBox.scrollTop / ROW) - 10);
  const lines = order.slice(first, first + Math.ceil(rowsBox.clientHeight / ROW) + 20).map((at) => {
    const line = document.createElement("div");
    line.className = found.columns.id[at] === chosen ? "line chosen" : "line";
    line.setAttribute("role", "row");
    line.append(...COLUMNS.map((name) => {
      const cell = document.createElement("span");
      cell.setAttribute("role", "cell");
      cell.textContent = cell.title = cellText(found, name, at);
      if (name === "source") cell.className = `n ${cell.textContent}`;
      if (name === "median_s") cell.title = `${found.columns.median_s[at] ?? "no time"}; record ${found.columns.id[at]}`;
      return cell;
    }));
    return line;
  });
  space.style.height = `${order.length * ROW}px`;
  list.style.transform = `translateY(${first * ROW}px)`;
  list.replaceChildren(...lines);
}

async function arrange() {
  const found = await unpacked();
  const words = wanted.toLowerCase().split(/\s+/).filter(Boolean);
  const names = ["source", "op", "implementation", "case", "how", "status", "machine", "reason", "origin"];
  const sets = words.map((word) => names.map((name) => found.columns[name].words.map((one) => one.toLowerCase().includes(word))));
  const fits = (at) => words.every((word, number) => found.columns.id[at] === word ||
    names.some((name, column) => sets[number][column][found.columns[name].at[at]]));
  order = [...Array(found.size).keys()].filter(fits);
  if (by) order = sorted(order, order.map((at) => by === "median_s" ? found.columns.median_s[at] ?? "" : found.word(by, at)), falling);
  const left = found.columns.left_out ? `; ${found.columns.left_out.toLocaleString("en")} more are in the files` : "";
  document.getElementById("records-note").textContent =
    `${order.length.toLocaleString("en")} of ${found.size.toLocaleString("en")} measurements, imported times and predictions${left}.`;
  rowsBox.scrollTop = 0;
  return draw();
}

async function choose(id) {
  [chosen, wanted, filterBox.value] = [id, id, id];
  document.getElementById("records").scrollIntoView();
  await arrange();
  rowsBox.focus({ preventScroll: true });
}

head.className = "line head";
head.setAttribute("role", "row");
head.append(...COLUMNS.map((name) => {
  const cell = document.createElement("span");
  cell.setAttribute("role", "columnheader");
  cell.append(name === "median_s" ? "time" : name);
  sortButton(cell, () => {
    falling = by === name && !falling;
    by = name;
    for (const other of head.children) other.removeAttribute("aria-sort");
    cell.setAttribute("aria-sort", falling ? "descending" : "ascending");
    arrange();
  });
  return cell;
}));
space.append(list);
rowsBox.append(head, space);
rowsBox.addEventListener("scroll", draw);
filterBox.addEventListener("input", () => { wanted = filterBox.value; arrange(); });
new IntersectionObserver((seen, watcher) => {
  if (seen.some((one) => one.isIntersecting)) { watcher.disconnect(); if (!order.length) arrange(); }
}).observe(rowsBox);
document.querySelectorAll("table").forEach(dress);

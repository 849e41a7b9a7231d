// After tables.js: the record behind a number, and all records, of which only the rows in sight are
// in the page. Text goes in as text, never as markup.
const LONG = 240, ROW = 22, SLICE = 2 ** 19;
const tip = document.getElementById("tip");

function reach(numbers) { // one stop of the Tab key a table or a paragraph; arrow keys go on from there
  numbers.forEach((number, at) => { number.setAttribute("role", "button"); number.tabIndex = at ? -1 : 0; });
}

function unitOf(seconds) { return ["s", "ms", "us"].find((name) => seconds >= SCALES[name]) ?? "ns"; }

function inUnit(seconds, unit, digits) { return Number((seconds / SCALES[unit]).toPrecision(digits)); }

async function bytesOf(letters) { // base64 by slices, between which the page answers
  const slices = [];
  for (let at = 0; at < letters.length; at += SLICE) {
    const slice = atob(letters.slice(at, at + SLICE)), bytes = new Uint8Array(slice.length);
    for (let place = 0; place < slice.length; place++) bytes[place] = slice.charCodeAt(place);
    slices.push(bytes);
    await new Promise((go) => setTimeout(go));
  }
  return new Blob(slices);
}

let unpacking = null;
function unpacked() { // once, when somebody asks
  unpacking ??= (async () => {
    const stream = (await bytesOf(document.getElementById("packed").textContent)).stream().pipeThrough(new DecompressionStream("deflate"));
    const columns = await new Response(stream).json();
    const byId = new Map(columns.id.map((id, at) => [id, at]));
    const word = (name, at) => columns[name].words[columns[name].at[at]];
    const lengths = [...new Set(columns.id.map((id) => id.length))];
    const begun = (id) => lengths.map((length) => byId.get(id.slice(0, length))).find((at) => at !== undefined);
    const place = (id) => byId.get(id) ?? (/^[0-9a-f]{16}$/.test(id) ? begun(id) : undefined); // a whole id, as in the files
    return { columns, place, word, size: columns.id.length };
  })();
  return unpacking;
}

function about({ columns, place, word }, id) { // a record in one line
  const at = place(id);
  if (at === undefined) return `record ${id}`;
  const seconds = columns.median_s[at];
  const time = seconds === null ? word("status", at) : `${inUnit(seconds, unitOf(seconds), 9)} ${unitOf(seconds)}`;
  return `${word("kind", at)}: ${time}, ${brief(`${word("op", at)} / ${word("implementation", at)}, ${word("case", at)}`)}, record ${id}`;
}

function brief(words) { return words.length > LONG ? `${words.slice(0, LONG)}…` : words; }

async function explain(number) {
  const found = await unpacked();
  const { columns, place, word } = found;
  const ids = number.dataset.r.split(" ");
  if (number.dataset.f) {
    const more = ids.length > MANY ? [`and ${ids.length - MANY} more: Enter shows all`] : [];
    return [brief(number.dataset.f), ...ids.slice(0, MANY).map((id) => about(found, id)), ...more].join("\n");
  }
  const at = place(ids[0]);
  const unit = unitOf(Number(number.dataset.s));
  const ends = at !== undefined && columns.low_s[at] !== null
    ? `, 95 %: ${inUnit(columns.low_s[at], unit, 6)} to ${inUnit(columns.high_s[at], unit, 6)} ${unit}` : "";
  const lines = [`${number.classList[1]}: ${inUnit(number.dataset.s, unit, 12)} ${unit}${ends}`];
  if (at === undefined) return [...lines, `record ${ids[0]}`].join("\n");
  lines.push(brief(`${word("op", at)} / ${word("implementation", at)}, ${word("case", at)} ${word("how", at)}`));
  if (word("machine", at)) lines.push(`on machine ${word("machine", at)}`);
  return [...lines, brief(word("origin", at)), `record ${ids[0]}`].join("\n");
}

const NUMBERS = ".n[data-r]";
function group(number) { return number.closest("table, ul, p, blockquote, details, section"); }

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
  document.addEventListener(enter, (event) => { const number = event.target.closest(NUMBERS); if (number) show(number); });
  document.addEventListener(leave, (event) => { if (event.target.closest(NUMBERS)) show(null); });
}
document.addEventListener("click", (event) => {
  const number = event.target.closest(NUMBERS);
  if (number) choose(number);
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") show(null);
  const number = event.target.closest?.(NUMBERS);
  if (!number) return;
  if (event.key === "Enter") return void choose(number);
  const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
  if (!step) return;
  const all = [...group(number).querySelectorAll(NUMBERS)].filter((one) => !one.closest("tr[hidden]"));
  const next = all[all.indexOf(number) + step];
  if (!next) return;
  event.preventDefault();
  number.tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
});

const COLUMNS = ["kind", "op", "implementation", "case", "median_s", "status", "says", "how", "machine", "origin"];
const WORDS = COLUMNS.filter((name) => name !== "median_s");
const rowsBox = document.getElementById("records-rows"), filterBox = document.getElementById("records-filter");
const list = document.createElement("div"), head = document.createElement("div"), space = document.createElement("div");
let order = [], chosen = new Set(), by = null, falling = false;

function cellText(found, name, at) {
  if (name !== "median_s") return found.word(name, at);
  const seconds = found.columns.median_s[at];
  return seconds === null ? "–" : `${inUnit(seconds, unitOf(seconds), 4)} ${unitOf(seconds)}`;
}

async function draw() {
  const found = await unpacked();
  const first = Math.max(0, Math.floor(rowsBox.scrollTop / ROW) - 10);
  const lines = order.slice(first, first + Math.ceil(rowsBox.clientHeight / ROW) + 20).map((at, number) => {
    const line = document.createElement("div");
    line.className = chosen.has(found.columns.id[at]) ? "line chosen" : "line";
    line.setAttribute("role", "row");
    line.setAttribute("aria-rowindex", first + number + 2);
    line.append(...COLUMNS.map((name) => {
      const cell = document.createElement("span");
      cell.setAttribute("role", "cell");
      cell.textContent = cell.title = cellText(found, name, at);
      if (name === "kind") cell.className = `n ${cell.textContent.replaceAll(" ", "-")}`;
      if (name === "median_s") cell.title = `${found.columns.median_s[at] ?? "no time"}; record ${found.columns.id[at]}`;
      return cell;
    }));
    return line;
  });
  space.style.height = `${order.length * ROW}px`;
  list.style.transform = `translateY(${first * ROW}px)`;
  list.replaceChildren(...lines);
}

function fitting(found) { // rows that hold every word; words that are the ids of records ask for any of these
  const asked = filterBox.value.split(/\s+/).filter(Boolean);
  const ids = new Set(asked.filter((word) => found.place(word) !== undefined));
  const words = asked.filter((word) => !ids.has(word)).map((word) => word.toLowerCase());
  const sets = words.map((word) => WORDS.map((name) => found.columns[name].words.map((one) => one.toLowerCase().includes(word))));
  const columns = WORDS.map((name) => found.columns[name].at);
  const all = ids.size ? [...new Set([...ids].map(found.place))] : [...Array(found.size).keys()];
  return all.filter((at) => sets.every((set) => set.some((there, column) => there[columns[column][at]])));
}

function inOrder(found, rows) { // by the rank of each different word, so that many rows sort at once
  if (by === "median_s") return sorted(rows, rows.map((at) => found.columns.median_s[at] ?? ""), falling);
  const { words, at: places } = found.columns[by];
  const ranks = new Array(words.length);
  sorted([...words.keys()], words, falling).forEach((word, rank) => { ranks[word] = rank; });
  return rows.map((at) => [ranks[places[at]], at]).sort(([one], [other]) => one - other).map(([, at]) => at);
}

async function arrange() {
  const found = await unpacked();
  order = fitting(found);
  if (by) order = inOrder(found, order);
  const left = found.columns.left_out ? `; ${found.columns.left_out.toLocaleString("en")} more are in the files` : "";
  document.getElementById("records-note").textContent =
    `${order.length.toLocaleString("en")} of ${found.size.toLocaleString("en")} records: measured, imported and predicted times, what has no time, findings and kernel builds${left}.`;
  rowsBox.setAttribute("aria-rowcount", order.length + 1);
  rowsBox.scrollTop = 0;
  return draw();
}

async function choose(number) {
  chosen = new Set(number.dataset.r.split(" "));
  filterBox.value = number.dataset.r;
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
for (const part of [space, list]) part.setAttribute("role", "rowgroup");
space.append(list);
rowsBox.append(head, space);
rowsBox.addEventListener("scroll", draw);
filterBox.addEventListener("input", arrange);
new IntersectionObserver((seen, watcher) => {
  if (seen.some((one) => one.isIntersecting)) { watcher.disconnect(); if (!order.length) arrange(); }
}).observe(rowsBox);
Map.groupBy(document.querySelectorAll(NUMBERS), group).forEach(reach);

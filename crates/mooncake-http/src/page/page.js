// What pages have in common. It stands in the head of each: there the theme is set before the first paint, or the page
// would flash in the other one.
"use strict";
const POLL_MS = 2000, HIDDEN_POLL_MS = 15000, TIMEOUT_MS = 5000;
const ROWS_PER_FRAME = 200, SHOWN_PROBLEMS = 5, CHART_SAMPLES = 150, DASH = "–";
const narrow = matchMedia("(max-width: 48em)"), canHover = matchMedia("(hover: hover)");
const firstRows = () => narrow.matches ? 10 : 50;
window.mooncake = { lastRenderMs: null, renders: 0 };

// --- Theme: the system's, until somebody chooses the other one; choosing the system's again forgets it ---

const systemTheme = matchMedia("(prefers-color-scheme: dark)");
const rememberedTheme = () => { try { return localStorage.getItem("mooncake-theme") } catch { return null } };
const useTheme = () => {
  document.documentElement.dataset.theme = rememberedTheme() ?? (systemTheme.matches ? "dark" : "light");
};
useTheme();

const otherTheme = () => document.documentElement.dataset.theme === "dark" ? "light" : "dark";
function showTheme() {
  useTheme();
  say(at("theme"), otherTheme() === "dark" ? "Dark" : "Light");
  at("theme").setAttribute("aria-label", `Use the ${otherTheme()} theme`);
}
function chooseOtherTheme() {
  const other = otherTheme();
  try {
    if ((other === "dark") === systemTheme.matches) localStorage.removeItem("mooncake-theme");
    else localStorage.setItem("mooncake-theme", other);
    showTheme();
  } catch {
    document.documentElement.dataset.theme = other; // without storage the choice lasts as long as the page
  }
}

// --- Formats: each takes what an older program may not send, and gives a dash for it ---

const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const tenths = new Intl.NumberFormat("en-US", { minimumFractionDigits: 1, maximumFractionDigits: 1 });
const known = (format) => (value) => Number.isFinite(value) ? format(value) : DASH;
const UNITS = ["B", "KB", "MB", "GB", "TB", "PB"];

const count = known((value) => whole.format(value));
const rate = known((value) => value === 0 || value >= 10 ? whole.format(value) : tenths.format(value));
const bytes = known((value) => {
  let unit = 0;
  for (; value >= 1023.5 && unit + 1 < UNITS.length; unit++) value /= 1024;
  return `${unit === 0 || value >= 99.95 ? whole.format(value) : tenths.format(value)} ${UNITS[unit]}`;
});
/** 100 % only of all, and 0 % only of nothing: what is almost full or almost empty has a decimal. */
const percent = known((share) => {
  const value = share * 100, rounded = Math.round(value);
  if ((rounded === 100 && value < 100) || (rounded === 0 && value > 0)) {
    return `${tenths.format(Math.min(99.9, Math.max(.1, value)))} %`;
  }
  return `${whole.format(value)} %`;
});
const micros = known((value) => {
  if (value < 999.5) return `${whole.format(value)} µs`;
  const [scaled, unit] = value < 999500 ? [value / 1e3, "ms"] : [value / 1e6, "s"];
  return `${scaled >= 10 ? whole.format(scaled) : tenths.format(scaled)} ${unit}`;
});
const span = known((seconds) => {
  const all = Math.floor(seconds);
  const [days, hours, minutes] = [all / 86400, all / 3600 % 24, all / 60 % 60].map(Math.floor);
  const units = [[days, "d"], [hours, "h"], [minutes, "min"], [all % 60, "s"]];
  const from = units.findIndex(([amount]) => amount > 0);
  if (from < 0) return "0 s";
  return units.slice(from, from + 2).filter(([amount]) => amount > 0)
    .map(([amount, unit]) => `${whole.format(amount)} ${unit}`).join(" ");
});
/** Its largest unit alone, for cells of a table. */
const coarseSpan = (seconds) => span(seconds).split(" ", 2).join(" ");
const ago = known((seconds) => `${span(seconds)} ago`);
/** Characters that nobody sees, or that turn the order of others around, are shown by their number. */
const UNSEEN = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g;
const words = (value) => value === "" || !["string", "number"].includes(typeof value) ? DASH
  : String(value).replace(UNSEEN, (one) => `\\u${one.charCodeAt(0).toString(16).padStart(4, "0")}`);
const FORMATS = { count, rate, bytes, percent, micros, span, ago, words };

const clockOfDay = new Intl.DateTimeFormat("en-GB", { timeStyle: "medium" });
const clockOfYear = new Intl.DateTimeFormat("en-GB",
  { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" });
const clock = known((ms) => {
  const time = new Date(ms);
  if (isNaN(time)) return DASH;
  return (time.toDateString() === new Date().toDateString() ? clockOfDay : clockOfYear).format(time);
});
const plural = (number, noun) => `${whole.format(number)} ${noun}${number === 1 ? "" : "s"}`;
const list = (value) => Array.isArray(value) ? value : [];
const part = (some, all) => all > 0 && Number.isFinite(some) ? Math.min(1, Math.max(0, some / all)) : null;

// --- Writing into the page: only what changed, and only as text ---

const at = (id) => document.getElementById(id);
const make = (tag, properties = {}) => Object.assign(document.createElement(tag), properties);

/** What a node shows is remembered in the node, as reading it back from the document costs more. */
function say(node, text) {
  if (node.said === text) return false;
  node.textContent = node.said = text;
  return true;
}

/** A class is one of a few words, whatever was answered. */
function sayState(node, severity, text) {
  say(node, text);
  const wanted = `dot ${node.dataset.also ?? ""} ${severity}`;
  if (node.className !== wanted) node.className = wanted;
}

function sayList(parent, model, items, write) {
  while (parent.children.length > items.length) parent.lastElementChild.remove();
  while (parent.children.length < items.length) parent.append(model.cloneNode(true));
  items.forEach((item, index) => write(parent.children[index], item));
}

// --- Tables of thousands ---

const RANKS = { error: 0, warning: 1, "": 2, ok: 3 };

/** Each makes a column: what is said, how wide in rem, what it is sorted by, and how a cell of it is written. */
const text = (label, width, value) => ({
  label, width, sort: value,
  write: (cell, one) => say(cell, words(value(one))),
});
const number = (label, width, value, format) => ({
  label, width, sort: value, kind: "number",
  write: (cell, one) => { if (say(cell, format(value(one)))) cell.classList.toggle("zero", !value(one)) },
});
/** Of a state there are a severity, a word and an explanation. */
const state = (label, width, stateOf) => ({
  label, width, kind: "state", isBare: true,
  sort: (one) => RANKS[stateOf(one)[0]],
  write: (cell, one) => {
    const [severity, word, about] = stateOf(one);
    sayState(cell, severity, word);
    if (cell.title !== about) cell.title = about;
  },
});
/** A bar with a figure behind it: a share of it is full, the first part of that is plain. */
const bar = (label, width, { value, share, plain = share, said, isWhole = false }) => ({
  label, width, sort: value, kind: isWhole ? "whole" : "", isBare: isWhole,
  content: () => {
    const content = make("div", { className: "fill" });
    content.append(make("i"), make("span"));
    return content;
  },
  write: (cell, one) => {
    const [piece, figure] = cell.firstChild.children, full = share(one), first = plain(one);
    say(figure, said(one));
    if (piece.share === full && piece.plain === first) return;
    Object.assign(piece, { share: full, plain: first });
    piece.style.cssText = full === null ? "visibility: hidden"
      : `--used-share: ${full * 100}%; --plain-share: ${first * 100}%`;
  },
});
const collator = new Intl.Collator("en", { numeric: true });
/** What is not known comes last, whichever the direction. */
function compare(a, b, sign) {
  const [isA, isB] = [a, b].map((value) => value !== undefined && value !== null && value !== "");
  if (!isA || !isB) return isB - isA;
  return sign * (typeof a === "number" && typeof b === "number" ? a - b : collator.compare(a, b));
}

/**
 * A table with sort buttons, a filter and the first rows of many. Rows are kept by what `idOf` says: moved, never
 * rebuilt. Those that are equal are in the order of `nameOf`; the filter looks into `wordsOf`. A column without a width
 * has no place beside the others: its page lays it out.
 */
function makeTable(id, { noun, columns, sortedBy, isDescending = false, idOf, nameOf, wordsOf }) {
  const section = at(id), table = section.querySelector("table"), filter = section.querySelector("input");
  const none = section.querySelector(".none"), more = section.querySelector(".more"), noneText = none.textContent;
  const body = make("tbody"), model = make("tr"), rows = new Map(), headers = [];
  let records = [], showsAll = false, ranks = new Map(), pending = 0;

  // Roles stand here in words, as some browsers take them from elements that are laid out as grids.
  const head = make("thead"), headRow = head.insertRow();
  [[table, "table"], [head, "rowgroup"], [body, "rowgroup"], [headRow, "row"], [model, "row"]]
    .forEach(([node, role]) => node.setAttribute("role", role));
  columns.forEach((column, index) => {
    const className = `${column.kind ?? ""} ${column.isMinor ? "minor" : ""}`;
    const header = make("th", { scope: "col", className });
    header.setAttribute("role", "columnheader");
    if (column.sort) {
      const button = make("button", { type: "button", textContent: column.label });
      button.addEventListener("click", () => {
        // Numbers are asked for from the top, words from the beginning.
        isDescending = sortedBy === index ? !isDescending : column.kind === "number" || Boolean(column.content);
        sortedBy = index;
        draw();
      });
      header.append(button);
    } else {
      // Nothing to press, and not to be seen: screen readers say it before its cells.
      header.className = "unseen";
      header.textContent = column.label;
    }
    headRow.append(header);
    headers.push(header);
    const cell = make(index ? "td" : "th", { className });
    cell.setAttribute("role", index ? "cell" : "rowheader");
    if (!index) cell.scope = "row";
    if (column.kind === "state") cell.dataset.also = "state";
    if (index && !column.isBare) cell.dataset.label = column.label;
    if (column.content) cell.append(column.content());
    model.append(cell);
  });
  const beside = columns.filter(({ width }) => width);
  const widths = beside.map(({ width }, index) => index ? `${width}rem` : `minmax(${width}rem, 1fr)`);
  table.style.setProperty("--columns", widths.join(" "));
  table.style.setProperty("--few-columns", widths.filter((_, index) => !beside[index].isMinor).join(" "));
  table.append(head, body);

  const searched = (one) => wordsOf(one).join(" ").toLowerCase();

  function ordered(shown) {
    const sign = isDescending ? -1 : 1, { sort } = columns[sortedBy];
    const keyed = shown.map((one) => [sort(one), one]);
    return keyed.sort(([a, x], [b, y]) => compare(a, b, sign) || collator.compare(nameOf(x) ?? "", nameOf(y) ?? ""))
      .map(([, one]) => one);
  }

  function draw() {
    const began = performance.now(), wanted = filter.value.trim().toLowerCase();
    let shown = wanted ? records.filter((one) => searched(one).includes(wanted)) : records;
    const found = shown.length;
    // Under the pointer rows keep their places: what somebody reads or copies must not run away.
    if (canHover.matches && body.matches(":hover")) {
      const rank = (one) => ranks.get(idOf(one)) ?? Infinity;
      shown = [...shown].sort((a, b) => rank(a) - rank(b) || 0);
    } else {
      shown = ordered(shown);
      ranks = new Map(shown.map((one, index) => [idOf(one), index]));
    }
    if (!showsAll) shown = shown.slice(0, firstRows());

    // Rows that leave go first: otherwise each row behind them would be moved.
    const ids = new Set(shown.map(idOf));
    for (const [id, row] of rows) {
      if (ids.has(id)) continue;
      row.node.remove();
      rows.delete(id);
    }
    cancelAnimationFrame(pending);
    writeRows(shown, 0, body.firstChild);

    headers.forEach((header, index) => {
      if (index === sortedBy) header.setAttribute("aria-sort", isDescending ? "descending" : "ascending");
      else header.removeAttribute("aria-sort");
    });
    none.hidden = found > 0;
    say(none, wanted && records.length ? `No ${noun} of ${count(records.length)} has this in it.` : noneText);
    table.hidden = found === 0;
    body.className = shown.length > 50 ? "many" : "";
    more.hidden = found <= firstRows();
    say(more, showsAll ? `Show the first ${firstRows()}` : `Show all ${plural(found, noun)}`);
    window.mooncake.lastRenderMs = performance.now() - began;
  }

  /** Some rows now and the others with the next frames: a click or a key waits for one step, not for all. */
  function writeRows(shown, from, next) {
    for (const one of shown.slice(from, from + ROWS_PER_FRAME)) {
      let row = rows.get(idOf(one));
      if (!row) {
        const node = model.cloneNode(true);
        rows.set(idOf(one), row = { node, cells: [...node.children] });
      }
      columns.forEach((column, index) => column.write(row.cells[index], one));
      if (row.node === next) next = next.nextSibling;
      else body.insertBefore(row.node, next);
    }
    const done = from + ROWS_PER_FRAME;
    if (done < shown.length) pending = requestAnimationFrame(() => writeRows(shown, done, next));
  }

  filter.addEventListener("input", draw);
  more.addEventListener("click", () => {
    showsAll = !showsAll;
    draw();
    if (!showsAll) section.scrollIntoView();
  });
  narrow.addEventListener("change", draw);
  // A text that is cut off has its whole as a tip, made only when somebody points at it.
  body.addEventListener("pointerover", ({ target }) => {
    const cell = target.closest("th, td");
    if (cell && cell.scrollWidth > cell.clientWidth) cell.title = cell.textContent;
  });
  return (update) => { records = update; say(at(`${id}-count`), count(update.length)); draw() };
}

// --- Charts ---

const SVG = "http://www.w3.org/2000/svg";

/** The least round number that is not below: a scale that changes seldom is one that can be compared. */
function roundTop(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 1.5, 2, 3, 4, 5, 6, 8, 10].find((step) => step * power >= value * .999) * power;
}

/** A line with gaps where nothing was asked; one lonely sample becomes a dot. */
function pathOf(samples, top) {
  let path = "", isDown = false;
  samples.forEach((value, index) => {
    if (!Number.isFinite(value)) { isDown = false; return }
    const x = CHART_SAMPLES - samples.length + index, y = (40 - 38 * Math.min(1, value / top)).toFixed(2);
    path += isDown ? `L${x} ${y}` : `M${x} ${y}h.01`;
    isDown = true;
  });
  return path;
}

function makeChart(node) {
  const series = node.dataset.series.split(" "), names = node.dataset.names.split(" ");
  const format = FORMATS[node.dataset.format], fixedTop = Number(node.dataset.top);
  const svg = document.createElementNS(SVG, "svg"), axis = make("div", { className: "axis" });
  svg.setAttribute("viewBox", `0 0 ${CHART_SAMPLES - 1} 40`);
  svg.setAttribute("preserveAspectRatio", "none");
  const lines = ["second", "first"].map((kind) => {
    const path = document.createElementNS(SVG, "path");
    path.setAttribute("class", kind);
    svg.append(path);
    return path;
  });
  const since = make("span"), now = make("span", { textContent: "now" });
  const scale = make("span", { className: "scale" }), cursor = make("i", { className: "cursor", hidden: true });
  axis.append(since, now);
  node.append(svg, axis, scale, cursor);
  node.setAttribute("role", "img");
  node.setAttribute("aria-label", "No figures yet");
  let samples = [[], []], every = 2, pointed = null;

  /** The line below says when the chart begins, or what is under the pointer. */
  function caption() {
    cursor.hidden = pointed === null;
    now.hidden = pointed !== null;
    if (pointed === null) return say(since, `${span(every * CHART_SAMPLES)} ago`);
    const index = Math.round(pointed * (CHART_SAMPLES - 1));
    cursor.style.left = `${index / (CHART_SAMPLES - 1) * 100}%`;
    const values = samples.map((one, which) =>
      `${names[which]} ${format(one[index - CHART_SAMPLES + one.length])}`);
    say(since, `${span((CHART_SAMPLES - 1 - index) * every)} ago: ${values.join(", ")}`);
  }
  node.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    pointed = Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
    caption();
  });
  node.addEventListener("pointerleave", () => { pointed = null; caption() });

  caption();
  return (history) => {
    samples = series.map((name) => list(history?.[name]).slice(-CHART_SAMPLES));
    every = history?.every_seconds > 0 ? history.every_seconds : 2;
    const numbers = samples.map((one) => one.filter(Number.isFinite));
    const top = fixedTop || roundTop(Math.max(0, ...numbers.flat()));
    lines.forEach((line, which) => line.setAttribute("d", pathOf(samples[1 - which], top)));
    say(scale, fixedTop || numbers.flat().some((value) => value > 0) ? format(top) : "");
    caption();
    const told = numbers.map((one, which) => one.length === 0 ? `${names[which]}: nothing`
      : `${names[which]}: last ${format(one.at(-1))}, ${format(Math.min(...one))} to ${format(Math.max(...one))}`);
    node.setAttribute("aria-label", `The last ${span(every * CHART_SAMPLES)}. ${told.join(". ")}`);
  };
}

// --- Cards and problems ---

/**
 * The small table of a card: row by row a swatch (or none), a name, and what its two cells show. A column is its name,
 * or a swatch and a name.
 */
function makeFacts(id, columns, rows) {
  const table = at(id), head = table.createTHead().insertRow(), body = table.createTBody();
  head.insertCell();
  for (const column of columns) {
    const header = make("th", { scope: "col" }), [name, swatch] = [column].flat().reverse();
    header.append(...swatch ? [make("i", { className: `swatch ${swatch}` })] : [], name);
    head.append(header);
  }
  for (const [swatch, name, ...shown] of rows) {
    const row = body.insertRow(), header = make("th", { scope: "row" });
    if (!shown[0]) { header.colSpan = 2; shown.shift() }
    if (swatch) header.append(make("i", { className: `swatch ${swatch}` }));
    header.append(name);
    row.append(header);
    shown.forEach((what) => {
      const cell = row.insertCell();
      cell.textContent = DASH;
      cell.dataset.show = what;
    });
  }
}
const ICON_COLOURS = { ok: "%2317784a", warning: "%23c98a00", error: "%23d5303a", "": "%23808890" };
let iconOf = null;
/** The tab shows how things are while another one is in front. */
function showTab(title, severity) {
  if (document.title !== title) document.title = title;
  if (iconOf === severity) return;
  iconOf = severity;
  at("icon").href = "data:image/svg+xml,<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 20 20'>" +
    `<path fill='${ICON_COLOURS[severity]}' d='M13 1.5A9 9 0 1 0 18.7 13 7.5 7.5 0 0 1 13 1.5z'/></svg>`;
}

let announced = "serving ";
/** Spoken once per change of what is wrong, not each time that a number in it changes. */
function announce(kind, spoken) {
  if (kind === announced) return;
  announced = kind;
  at("announcement").textContent = spoken;
}

/** An item of a list: its pieces are written by the order that they stand in. */
function itemOf(...pieces) {
  const item = make("li");
  item.append(...pieces);
  return item;
}
const problemItem = itemOf(make("b", { className: "dot" }), make("span", { className: "message" }),
  make("span", { className: "remedy" }));

let showsAllProblems = false, lastProblems = [];

function showProblems(problems) {
  lastProblems = problems;
  const more = at("more-problems");
  at("problems").hidden = problems.length === 0;
  say(at("problems-title"), plural(problems.length, "problem"));
  more.hidden = problems.length <= SHOWN_PROBLEMS;
  say(more, showsAllProblems ? "Show the worst" : `Show all ${whole.format(problems.length)}`);
  const shown = showsAllProblems ? problems : problems.slice(0, SHOWN_PROBLEMS);
  sayList(at("problem-list"), problemItem, shown, (item, one) => {
    const severity = one.severity === "error" ? "error" : "warning", [tag, message, remedy] = item.children;
    if (item.className !== severity) item.className = severity;
    sayState(tag, severity, severity === "error" ? "Error" : "Warning");
    say(message, words(one.message ?? one.code));
    say(remedy, one.remedy ? words(one.remedy) : "");
  });
}

// --- Asking ---

/** An answer may carry its state with 503, as while a master reads its log: then the body counts, not the code. */
async function ask(url) {
  const control = new AbortController(), timer = setTimeout(() => control.abort(), TIMEOUT_MS);
  try {
    const answer = await fetch(url, { cache: "no-store", signal: control.signal });
    const body = await answer.json().catch((error) => {
      if (control.signal.aborted) throw error;
      throw new Error(`HTTP ${answer.status}, and no JSON`);
    });
    if (!answer.ok && !body?.state) throw new Error(`HTTP ${answer.status}`);
    if (body === null || typeof body !== "object") throw new Error("an answer that is no object");
    return body;
  } catch (error) {
    if (control.signal.aborted) throw new Error(`a request took more than ${TIMEOUT_MS / 1000} s`);
    throw error instanceof TypeError ? new Error("it cannot be reached") : error;
  } finally {
    clearTimeout(timer);
  }
}

/**
 * Begins to ask, once the document is there. `subject` answers, the tab is called `brand`, `notices` are what a state
 * means for who reads. `tabOf` says what of an answer the tab shows instead of how many problems there are.
 * `withShares` adds to an answer what is counted from it, for nodes that say by `data-show` what they show; whatever
 * else is shown is up to `showFigures`. An answer of which `hasFigures` is false leaves the last figures, dimmed.
 */
function startPage({
  subject, brand, notices, hasFigures = () => true, tabOf = () => "", withShares = (status) => status, showFigures,
}) {
  const bindings = [...document.querySelectorAll("[data-show]")].map((node) => {
    const [format, path] = node.dataset.show.split(" ");
    return { node, format: FORMATS[format], path: path.split(".") };
  });
  const charts = [...document.querySelectorAll(".chart")].map(makeChart);
  const openedAt = Date.now();
  let answeredAt = null, isAsking = false, timer = null;

  function show(status) {
    const began = performance.now(), problems = list(status.problems), state = words(status.state);
    const isCalm = state === "serving" && problems.length === 0;
    const severity = problems.some((one) => one.severity === "error") ? "error" : isCalm ? "ok" : "warning";
    const troubles = problems.length ? plural(problems.length, "problem") : "";
    sayState(at("state"), severity, [state, troubles].filter(Boolean).join(", "));
    const tab = tabOf(status) || troubles || (state === "serving" ? "" : state);
    showTab(tab ? `${tab} - ${brand}` : `${brand}: serving`, severity);
    const worst3 = problems.slice(0, 3).map((one) => words(one.message)).join("; ");
    const spoken = troubles ? `${troubles}: ${worst3}` : `${state}, no problem`;
    announce(`${state} ${problems.map((one) => one.code)}`, spoken);
    at("silence").hidden = true;
    at("notice").hidden = !Object.hasOwn(notices, state);
    say(at("notice"), notices[state] ?? "");
    showProblems(problems);

    const isWithout = !hasFigures(status), figures = withShares(status);
    document.body.classList.toggle("stale", isWithout);
    for (const { node, format, path } of bindings) {
      const value = path.reduce((object, name) => object?.[name], figures);
      if (!isWithout || value !== undefined) say(node, format(value));
    }
    if (!isWithout) {
      charts.forEach((chart) => chart(status.history));
      showFigures(figures);
    }
    window.mooncake.lastRenderMs = performance.now() - began;
    window.mooncake.renders++;
  }

  function showSilence(error) {
    const since = answeredAt ?? openedAt, silence = at("silence");
    silence.hidden = false;
    say(silence, `No answer from the ${subject} since ${clock(since)} (${span((Date.now() - since) / 1000)}): ` +
      `${words(error.message)}.${answeredAt ? " The figures are from then." : ""}`);
    document.body.classList.add("stale");
    at("notice").hidden = true;
    sayState(at("state"), "error", "not answering");
    showTab(`not answering - ${brand}`, "error");
    announce("silent", `The ${subject} does not answer.`);
  }

  async function poll() {
    if (isAsking) return;
    isAsking = true;
    clearTimeout(timer);
    try {
      const asked = performance.now();
      let status;
      try { status = await ask("status") } catch (error) { return showSilence(error) }
      answeredAt = Date.now();
      say(at("answered"), `Last answer at ${clock(answeredAt)}, within ${whole.format(performance.now() - asked)} ms.`);
      show(status);
    } catch (error) {
      // Figures that stand still have to say so, also where this page is to blame.
      console.error(error);
      at("notice").hidden = false;
      say(at("notice"), `This page cannot show what the ${subject} answered: see the JSON.`);
    } finally {
      isAsking = false;
      timer = setTimeout(poll, document.hidden ? HIDDEN_POLL_MS : POLL_MS);
    }
  }

  at("more-problems").addEventListener("click", () => {
    showsAllProblems = !showsAllProblems;
    showProblems(lastProblems);
  });
  document.addEventListener("visibilitychange", () => { if (!document.hidden) poll() });
  at("theme").addEventListener("click", chooseOtherTheme);
  systemTheme.addEventListener("change", showTheme);
  showTheme();
  poll();
}

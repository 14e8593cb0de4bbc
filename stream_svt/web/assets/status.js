// The status page. It draws what the worker answers every two seconds: budgets and events of the application from
// api/v1/overview, this worker's shards from api/v1/worker. Names of datasets and series may be anything, so text only ever becomes text, never markup.
"use strict";

document.addEventListener("DOMContentLoaded", () => {
  const FEW_DATASETS = 12;
  const POLL = 2000;
  const TYPE = /^io\.stream-svt\.(.+)\.v\d+$/;

  const at = (id) => document.getElementById(id);
  const datasets = new Map();      // name -> the newest figures
  const rows = new Map();          // name -> {node, ...} of the budgets
  let complete = false;            // whether every event ever released was read
  let declared = 0;
  let skew = 0;                    // the worker's clock less ours, in seconds
  let status = null;
  let statusFailed = false;
  let trouble = "";
  let newest = 0;

  // -- small things -----------------------------------------------------------------------------------------

  const make = (tag, attributes = {}, ...children) => {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value === true ? "" : value);
    }
    node.append(...children.filter((child) => child !== null));
    return node;
  };
  const draw = (tag, attributes) => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    return node;
  };
  // Names are isolated, so that none written from right to left turns around what stands beside it.
  const name = (text) => make("bdi", {}, text);
  const unitOf = (one) => name(one.unit.replaceAll("`", ""));
  const set = (node, text) => { if (node.textContent !== text) node.textContent = text; };
  // Draws a part anew only where something in it has changed: a selection stays, and so does the reader's place.
  const fill = (node, key, build) => {
    const text = JSON.stringify(key);
    if (node.dataset.key === text) return;
    node.dataset.key = text;
    node.replaceChildren(...build());
  };
  const total = (amounts) => Object.values(amounts).reduce((sum, amount) => sum + amount, 0);
  const now = () => Date.now() / 1000 + skew;
  const many = (count, one, more = one + "s") => `${number(count)} ${count === 1 ? one : more}`;

  const whole = new Intl.NumberFormat("en", { maximumSignificantDigits: 6 });
  const fine = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });
  const number = (value) => whole.format(value);
  const loss = (value, measure) => {
    if (value !== 0 && Math.abs(value) < 0.01) return fine.format(value);
    const digits = measure === "rho" ? 4 : 2;
    return new Intl.NumberFormat("en", { maximumFractionDigits: digits }).format(value);
  };
  // Rounded against us: a bound down, the chance of a guess up.
  const below = new Intl.NumberFormat("en", { maximumSignificantDigits: 6, roundingMode: "floor" });
  const chance = (share) => {
    const digits = share < 0.9 ? 0 : share < 0.99 ? 1 : 2;
    return new Intl.NumberFormat("en", { maximumFractionDigits: digits, roundingMode: "ceil" }).format(100 * share);
  };

  const UNITS = [["second", 1], ["minute", 60], ["hour", 3600], ["day", 86400], ["week", 604800], ["month", 2629746], ["year", 31556952]];
  const span = (seconds) => {
    let [word, length] = UNITS[0];
    // A day and a half reads as two days, not as one.
    for (const [next, size] of UNITS) if (seconds >= size) [word, length] = [next, size];
    const count = Math.max(Math.round(seconds / length), 1);
    return `${number(count)} ${word}${count === 1 ? "" : "s"}`;
  };
  const ago = (time) => {
    const seconds = now() - time;
    return seconds < 5 ? "just now" : `${span(seconds)} ago`;
  };
  const clock = (time) => new Date(time * 1000).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "medium" });
  const since = (time) => make("time", { datetime: new Date(time * 1000).toISOString(), title: clock(time), "data-at": time }, ago(time));

  const STATES = {
    idle: "waiting for a first query", running: "running", halted: "halted", exhausted: "used up", paused: "paused",
    limited: "limited", stopped: "stopped", parked: "parked",
    unknown: "not known here",
  };
  const ORDER = ["running", "idle", "halted", "limited", "stopped", "paused", "parked", "exhausted", "unknown"];
  const cell = (label, ...content) => make("td", { role: "cell", "data-label": label }, make("div", {}, ...content));
  const numeric = (label, ...content) => make("td", { role: "cell", "data-label": label, class: "number" }, make("div", {}, ...content));
  const stateOf = (state, words) => make("span", { class: "state", "data-state": state }, words ?? STATES[state] ?? state);

  // -- who does not watch ------------------------------------------------------------------------------------

  const MOST_BLIND = 20;
  // Why queries are skipped, and the command that ends it.
  const BLIND = {
    exhausted: ["its budget pays no further run", (dataset) => `stream-svt control raise-budget -c FILE ${dataset} --limit LOSS`],
    limited: ["max_runs is reached", (dataset, monitor) => `stream-svt control resample -c FILE ${dataset} --monitor ${monitor}`],
    stopped: ["its run ended, and no other one begins", (dataset, monitor) => `stream-svt control resample -c FILE ${dataset} --monitor ${monitor}`],
    paused: ["an operator paused it", (dataset, monitor) => `stream-svt control resume -c FILE ${dataset} --monitor ${monitor}`],
  };
  // A name as one word of a shell.
  const quoted = (text) => (/^[\w@%+=:,.\/-]+$/.test(text) ? text : `'${text.replaceAll("'", `'"'"'`)}'`);
  const parked = () => (status?.shards ?? []).filter((shard) => shard.state === "parked" && shard.cause !== "closed");

  // The state of a monitor now and its end, 0 for none: a state may have ended since the last commit, and a parked shard tests nothing.
  function stateNow(one, monitor) {
    if (parked().some((shard) => shard.shard === one.shard)) return ["parked", 0];
    const states = [[monitor.state ?? "unknown", monitor.until], [monitor.beneath, monitor.beneath_until], ["halted", 0]];
    return states.find(([state, until]) => state && !(until && until / 1000 <= now()));
  }

  // What is not watched, the longest first: {where, why, since, until, remedy}.
  function blindness() {
    if (closedFor) return [];
    const found = parked().map((shard) => ({
      where: [`Shard ${shard.shard}`], why: `is parked: ${shard.cause}`, since: 0, until: 0,
      remedy: "", more: shard.reason || "See the log of this worker", tone: "out",
    }));
    for (const one of [...datasets.values()].filter((each) => !isOver(each))) {
      if (!one.monitors.length) {
        found.push({ where: [one.dataset], why: "is covered by no monitor", since: 0, until: 0, remedy: "stream-svt apply -c FILE", tone: "warn" });
      }
      for (const monitor of one.monitors) {
        const [state, until] = stateNow(one, monitor);
        if (!BLIND[state]) continue;
        const [why, remedy] = BLIND[state];
        const waits = one.promise && (state === "exhausted" || state === "stopped");
        found.push({
          where: [one.dataset, monitor.monitor], why: `is ${state}: ${why}`, since: (monitor.since ?? 0) / 1000,
          until: waits ? one.next : (until ?? 0) / 1000, more: waits && state === "exhausted" && "Its limit never changes",
          remedy: remedy(quoted(one.dataset), quoted(monitor.monitor)), tone: state === "paused" ? "warn" : "out",
        });
      }
    }
    return found.sort((a, b) => a.since - b.since);
  }

  let blind = [];
  function showBlind() {
    blind = blindness();
    at("blind").hidden = !blind.length;
    at("blind").dataset.tone = blind.some((one) => one.tone === "out") ? "out" : "warn";
    set(at("blind-title"), `Not watching: ${number(blind.length)}`);
    fill(at("blind-list"), blind, () => blind.slice(0, MOST_BLIND).map((one) => make("li", {},
      make("p", {}, make("b", {}, ...one.where.flatMap((text) => [" · ", name(text)]).slice(1)), ` ${one.why}.`),
      make("p", { class: "where" }, one.since ? make("span", {}, "Since ", clock(one.since), " (", since(one.since), "). ") : null,
        one.until ? `Until ${clock(one.until)}. ` : one.where.length > 1 ? "Until somebody acts. " : null,
        one.more ? `${one.more}.` : make("span", {}, one.until ? "At once with " : "It ends with ", make("code", {}, one.remedy))))));
    set(at("blind-more"), blind.length > MOST_BLIND ? `and ${number(blind.length - MOST_BLIND)} more` : "");
  }

  // -- budgets ----------------------------------------------------------------------------------------------

  // The ledger is exact, figures here are doubles: what their rounding leaves over is nothing.
  const restOf = (limit, ...amounts) => {
    const rest = amounts.reduce((left, amount) => left - amount, limit);
    return rest > limit * 1e-12 ? rest : 0;
  };
  const leftOf = (one) => (one.spent === null ? null : restOf(one.limit, one.spent));
  const stopped = (one) => one.monitors.length > 0 && one.monitors.every((monitor) => monitor.state === "exhausted");
  const isOver = (one) => one.ends !== null && one.ends < now();

  let closedFor = "";              // the successor, once a shard of the application is closed

  const outlastsPeriod = (one) => one.ends !== null && one.outlook.early > one.ends;
  function toneOf(one) {
    const left = leftOf(one);
    if (left === null) return "";
    if (left === 0 || stopped(one)) return "out";
    return left / one.limit < 0.2 ? "warn" : "";
  }

  function outlookOf(one) {
    const left = leftOf(one);
    if (left === null) return "Another worker keeps this ledger, and the events read here do not reach back to it.";
    const next = one.next === null || closedFor ? "" : ` The next one begins in ${span(Math.max(one.next - now(), 1))}.`;
    if (one.promise && (left === 0 || stopped(one))) return `Used up in this period.${next}`;
    if (left === 0) return "Used up. Nothing more is released about this dataset, unless an operator raises its limit.";
    if (stopped(one)) return `Used up: what is left pays no further run. Nothing more is released, unless an operator raises the limit.`;
    if (closedFor) return `The application is closed: ${closedFor} goes on with what is left.`;
    if (isOver(one)) return "Its period is over: what is left stays unspent.";
    if (one.spent === 0) return "Untouched.";
    const closing = next || (one.ends === null ? "" : ` Its period ends in ${span(one.ends - now())}.`);
    const end = one.outlook;
    if (end === null) return `Too few payments yet to say how long it lasts.${closing}`;
    if (outlastsPeriod(one)) return `Likely to last beyond its period, which ends in ${span(one.ends - now())}.`;
    if (end.least >= end.expected) return `It lasts at least ${span(Math.max(end.least - now(), 1))} more: max_runs allows no earlier end.${closing}`;
    const [early, expected, late] = [end.early, end.expected, end.late].map((time) => Math.max(time - now(), 1));
    return `At the pace of the last ${many(end.payments + 1, "payment")} it lasts about ${span(expected)} more; `
      + `9 times in 10 that is between ${span(early)} and ${span(late)}.${closing}`;
  }

  // What was spent up to now, as steps of the limit, and where the outlook reaches it 9 times in 10.
  function chartOf(one) {
    const end = isOver(one) || stopped(one) || closedFor ? null : one.outlook;
    if (one.spent === null || one.charges.length < 2) return [];
    const [from, today] = [one.charges[0][0], Math.min(now(), one.ends ?? Infinity)];
    const until = Math.max(today, Math.min(end?.late ?? today, one.ends ?? Infinity));
    const x = (time) => 100 * (time - from) / Math.max(until - from, 1);
    const y = (amount) => 40 - 40 * Math.min(amount / one.limit, 1);
    let sum = Math.max(one.charges.reduce((rest, [, amount]) => rest - amount, one.spent), 0);
    let path = `M0,40V${y(sum)}`;
    for (const [time, amount] of one.charges) path += `H${x(time)}V${y(sum += amount)}`;
    const corner = `${x(today)},${y(one.spent)}`;
    const chart = draw("svg", { class: "chart", viewBox: "0 0 100 40", preserveAspectRatio: "none", "aria-hidden": "true" });
    if (end) {
      chart.append(draw("path", { class: "fan", d: `M${corner}L${x(end.early)},0H${x(end.late)}Z` }),
        draw("path", { class: "expected", d: `M${corner}L${x(end.expected)},0` }));
    }
    chart.append(draw("path", { class: "spent", d: `${path}H${x(today)}V40Z` }));
    const day = (time) => new Date(time * 1000).toLocaleString("en-GB", until - from < 172800
      ? { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" } : { day: "numeric", month: "short" });
    return [chart, make("p", { class: "times" }, make("span", {}, day(from)), make("span", {}, day(until)))];
  }

  function guessOf(one) {
    return [make("p", {}, "Suppose somebody knows all the other data and wonders whether one protected unit (", unitOf(one),
      ") was in it. With a coin they are right 50 times in 100. With everything ever released about this dataset, the best guess is right at most ",
      one.guess_spent === null ? "" : `${chance(one.guess_spent)} times in 100 so far, and at most `,
      `${chance(one.guess_limit)} times in 100 once the whole limit is spent. No later release about other data changes that.`)];
  }

  function newBudget() {
    const part = (kind) => make("span", { class: `is-${kind}` });
    const row = {
      title: make("h3"), amount: make("span", { class: "amount" }),
      spent: make("span", { class: "spent" }), reserved: make("span", { class: "reserved" }),
      parts: [part("spent"), part("reserved"), part("free")],
      outlook: make("p", { class: "outlook" }), chart: make("div"), meaning: make("div"), monitors: make("tbody", { role: "rowgroup" }),
    };
    row.bar = make("div", { class: "bar", role: "img" }, row.spent, row.reserved);
    row.words = make("p", { class: "parts" }, ...row.parts);
    row.details = make("details", {}, make("summary", {}, "What this means, and who spent it"), row.meaning,
      make("table", { class: "small", role: "table" }, make("thead", { role: "rowgroup" }, make("tr", { role: "row" },
        ...["Monitor", "State", "Runs", "Alerts", "Spent"].map((text, index) =>
          make("th", { role: "columnheader", scope: "col", class: index > 1 ? "number" : null }, text)))), row.monitors));
    row.node = make("li", { class: "budget" },
      make("div", { class: "row" }, row.title, row.amount), row.bar, row.words, row.outlook, row.chart, row.details);
    row.details.addEventListener("toggle", () => showDetails(row));
    return row;
  }

  function showBudget(one) {
    let row = rows.get(one.dataset);
    if (!row) {
      row = newBudget();
      rows.set(one.dataset, row);
      row.title.append(name(one.dataset), " ", make("small", {}, "protects ", unitOf(one)));
      row.details.firstChild.setAttribute("aria-label", `What this means for ${one.dataset}, and who spent it`);
    }
    row.one = one;
    row.node.dataset.tone = toneOf(one);
    const [left, measure] = [leftOf(one), one.measure];
    const limit = loss(one.limit, measure);
    row.amount.replaceChildren(...(left === null ? [`limit ${limit} ${measure}`]
      : [make("strong", {}, loss(left, measure)), ` of ${limit} ${measure} left`]));
    const [spent, reserved] = [one.spent ?? 0, one.reserved ?? 0];
    const free = restOf(one.limit, spent, reserved);
    for (const [node, amount] of [[row.spent, spent], [row.reserved, reserved]]) {
      node.style.width = `${Math.min(100 * amount / one.limit, 100)}%`;
      node.style.minWidth = amount > 0 ? "3px" : "0";
    }
    const words = [`${loss(spent, measure)} spent`, `${loss(reserved, measure)} reserved by open runs`, `${loss(free, measure)} free`];
    row.parts.forEach((part, index) => set(part, words[index]));
    row.parts[1].hidden = reserved === 0;
    row.words.hidden = left === null || spent + reserved === 0;
    row.bar.setAttribute("aria-label", left === null ? "Not known here" : `${words.join(", ")}, of ${limit} ${measure}`);
    set(row.outlook, outlookOf(one));
    row.chart.replaceChildren(...chartOf(one));
    showDetails(row);
  }

  function showDetails(row) {
    if (!row.details.open) return;
    const one = row.one;
    row.meaning.replaceChildren(...guessOf(one));
    const state = (monitor) => {
      const [shown, until] = stateNow(one, monitor);
      return stateOf(shown, until ? `${shown} until ${clock(until / 1000)}` : undefined);
    };
    row.monitors.replaceChildren(...one.monitors.map((monitor) => make("tr", { role: "row" },
      cell("Monitor", name(monitor.monitor)),
      cell("State", state(monitor)),
      numeric("Runs", number(monitor.run)),
      numeric("Alerts", (one.source === "alerts" && !complete ? "≥ " : "") + number(monitor.alerts)),
      numeric("Spent", monitor.spent === null ? "–" : loss(monitor.spent, one.measure)))));
  }

  function arrangeBudgets() {
    const names = [...datasets.keys()];
    const crowded = names.length > FEW_DATASETS;
    const wanted = at("filter").value.trim().toLowerCase();
    // The least left comes first: that is what somebody has to look at.
    const rank = (one) => (leftOf(one) === null ? 2 : leftOf(one) / one.limit);
    const shown = !crowded ? names : names.filter((each) => each.toLowerCase().includes(wanted))
      .sort((a, b) => rank(datasets.get(a)) - rank(datasets.get(b))).slice(0, FEW_DATASETS);
    at("budget-tools").hidden = !crowded;
    const beyond = declared > names.length ? `; ${number(declared)} are declared, the first ${number(names.length)} have figures` : "";
    set(at("more"), `${number(shown.length)} of ${number(names.length)} are shown, the most spent first${beyond}.`);
    for (const each of shown) showBudget(datasets.get(each));
    const nodes = shown.map((each) => rows.get(each).node);
    const list = at("budgets");
    if (nodes.length !== list.children.length || nodes.some((node, index) => node !== list.children[index])) {
      const active = document.activeElement;
      list.replaceChildren(...nodes);
      if (list.contains(active)) active.focus({ preventScroll: true });
    }
    const empty = at("budgets-empty");
    empty.hidden = nodes.length > 0;
    if (datasets.size) set(empty, "No dataset of that name.");
  }

  // -- what was released --------------------------------------------------------------------------------------

  const LIFECYCLE = {
    "budget.raised": [(data) => `Limit raised to ${data.account ? loss(data.account.limit, data.account.measure) : "more"} by an operator`, "warn"],
    "run.halted": [(data) => `Run ${data.run} halted: it has raised all the alerts it paid for${data.detail.stopped ? "; no other one begins" : ""}`, "", true],
    "monitor.exhausted": [() => "Used up: the budget pays this monitor no further run", "out"],
    "monitor.limited": [(data) => `Limited by max_runs: the next run may begin ${clock(data.detail.until / 1000)}`, "warn"],
    "monitor.paused": [(data) => `Paused by an operator${data.detail.until ? ` until ${clock(data.detail.until / 1000)}` : ""}`, "warn"],
    "monitor.resumed": [(data) => data.reason === "time" ? "No longer paused" : "Resumed by an operator", ""],
    "alert.ended": [(data) => `The incident of ${data.detail.series} is over: below ${below.format(data.detail.below)}`, ""],
    "series.muted": [(data) => `An operator muted series ${data.detail.series}`, "warn"],
    "series.unmuted": [(data) => `An operator unmuted series ${data.detail.series}`, ""],
    "loss.accepted": [() => "An operator accepted that queries were lost", "warn"],
    "command.reply": [(data) => `Command ${data.detail.action ?? ""} ${data.reason}`, "", true],
    "application.closed": [(data, event) => `Shard ${event.shard} closed permanently: ${data.detail.successor ?? "a successor"} goes on with what is left of its budgets`, "warn"],
  };

  // Kinds without words of their own: what happened, and why.
  const inShort = (data, event) => `${event.kind[0].toUpperCase()}${event.kind.slice(1).replace(".", " ")}${data.reason ? `: ${data.reason}` : ""}`;

  // An estimate has no more digits than its noise leaves it.
  const guess = (alert) => {
    const digits = Math.min(Math.max(-Math.floor(Math.log10(alert.query_noise.scale)), 0), 12);
    return new Intl.NumberFormat("en", { maximumFractionDigits: digits }).format(alert.estimate);
  };
  const inWords = (alert) => (alert.bound === null
    ? "Above the noisy threshold, by too little for a bound"
    : `At least ${below.format(alert.bound)} (${fine.format(100 * (1 - alert.beta))} % bound), estimated ${guess(alert)}`);

  const muted = (until) => (until === null ? ""
    : ` · muted ${typeof until === "number" ? `until ${clock(until / 1000)}` : `for the ${until}`}`);

  function alertRow(event) {
    const alert = event.data;
    const subject = make("b", {}, name(alert.series ?? alert.query_id));
    const more = `run ${alert.run}, alert ${alert.number}` + (alert.attempt > 1 ? `, at test ${alert.attempt}` : "")
      + muted(alert.muted_until);
    return make("li", {}, since(event.at),
      make("div", { class: "what" },
        make("p", {}, subject, " ", make("span", { class: "where" }, name(alert.dataset), " · ", name(alert.monitor))),
        make("p", { class: "words" }, `${inWords(alert)}.`),
        make("p", { class: "where" }, `Gap ${number(alert.gap)} · ${more} · ${paid(alert.account)} · `,
          make("code", {}, `stream-svt explain -c FILE ${quoted(event.id)}`))));
  }

  const paid = (account) => (account.charge > 0
    ? `paid ${loss(account.charge, account.measure)} ${account.measure}` : "paid with its run");

  function eventRow(event) {
    const data = event.data;
    const [words, tone, aside] = LIFECYCLE[event.kind] ?? [inShort, "", true];
    const where = [data.dataset, data.monitor].filter(Boolean).flatMap((text) => [" · ", name(text)]).slice(1);
    return make("li", { class: "event", "data-tone": tone, "data-minor": aside ?? false }, since(event.at),
      make("p", { class: "what" }, make("span", { class: "where" }, ...where), where.length ? ": " : "", words(data, event)));
  }

  let events = [];                 // the newest ones, as answered last
  let told = null;                 // ids of the events that are no news; null before the first answer
  function showEvents() {
    for (const event of events) {
      event.kind = TYPE.exec(event.type)?.[1] ?? event.type;
      event.at = Date.parse(event.time) / 1000;
      if (event.kind === "application.closed") closedFor = event.data.detail.successor ?? "a successor";
    }
    // Events come shard by shard, and are put in the order of time, the newest on top.
    const sorted = [...events].sort((a, b) => a.at - b.at).reverse();
    const alerts = sorted.filter((event) => event.kind === "alert");
    newest = alerts[0]?.at ?? 0;
    fill(at("list"), sorted.map((event) => event.id), () => sorted.map((event) => (event.kind === "alert" ? alertRow : eventRow)(event)));
    const fresh = told === null ? [] : alerts.filter((event) => !told.has(event.id));
    if (fresh.length) {
      const { data } = fresh[0];
      const rest = fresh.length > 1 ? `, and ${many(fresh.length - 1, "more alert")}` : "";
      set(at("spoken"), `New alert: ${data.series ?? data.query_id} in ${data.dataset}. ${inWords(data)}${rest}.`);
    }
    if (!trouble) told = new Set(events.map((event) => event.id));
    const minor = at("lifecycle").checked;
    const some = [...at("list").children].some((row) => minor || !row.hasAttribute("data-minor"));
    at("list").classList.toggle("all", minor);
    at("list").hidden = !some;
    at("alerts-empty").hidden = some;
  }

  // -- at a glance ------------------------------------------------------------------------------------------

  function glance(title, figure, of, note, tone = "") {
    return make("div", { "data-tone": tone }, make("dt", {}, title),
      make("dd", { class: "figure" }, figure, of ? make("small", {}, ` ${of}`) : null), make("dd", { class: "note" }, note));
  }

  function showGlance() {
    const all = [...datasets.values()];
    const sure = complete || all.every((one) => one.source === "state");
    const alerts = total(all.flatMap((one) => one.monitors).map((monitor) => monitor.alerts));
    const known = all.filter((one) => leftOf(one) !== null);
    const out = known.filter((one) => toneOf(one) === "out");
    const low = known.filter((one) => toneOf(one) === "warn");
    const seats = all.flatMap((one) => one.monitors);
    const states = all.flatMap((one) => one.monitors.map((monitor) => stateNow(one, monitor)[0]));
    const count = (state) => states.filter((each) => each === state).length;
    const waiting = status ? total(status.shards.map((shard) => total(shard.lag))) : null;
    const level = out.length ? `${many(out.length, "budget")} used up` : low.length ? `${many(low.length, "budget")} nearly used up` : "";
    const budgets = [closedFor && "closed", level].filter(Boolean).join("; ") || "a fifth or more is left of each";
    const halted = [["halted", "halted"], ["limited", "limited"], ["paused", "paused"], ["exhausted", "used up"], ["stopped", "stopped"], ["parked", "parked"], ["idle", "waiting"], ["unknown", "not known here"]]
      .filter(([state]) => count(state)).map(([state, word]) => `${number(count(state))} ${word}`);
    const refused = status ? total(status.refused.reasons) : 0;
    const key = [alerts, sure, newest, known.length, out.length, low.length, all.length, budgets, halted, waiting, status?.ready, refused, blind.length, at("blind").dataset.tone];
    fill(at("glance"), key, () => [
      glance("Alerts released", (sure ? "" : "≥ ") + number(alerts), "", newest ? make("span", {}, "the newest ", since(newest)) : "none yet"),
      glance("Budgets with room", number(known.length - out.length), `of ${number(all.length)}`,
        known.length < all.length ? `${number(all.length - known.length)} not known here` : budgets, out.length ? "out" : low.length ? "warn" : ""),
      glance("Monitors running", number(count("running")), `of ${number(seats.length)}`,
        halted.join(", ") || `on ${many(all.length, "dataset")}`, blind.length ? at("blind").dataset.tone : ""),
      glance("Queries waiting", waiting === null ? "–" : number(waiting), "", status === null ? "no answer yet"
        : (status.ready ? "this worker is ready" : "this worker is not ready") + (refused ? `; it refused ${many(refused, "record")}` : ""),
      status && (!status.ready || refused) ? "warn" : ""),
    ]);
    document.title = `${blind.length ? `(${blind.length} not watching) ` : ""}${at("application").textContent} - stream_svt`;
  }

  // -- monitors and this worker -----------------------------------------------------------------------------

  const MECHANISMS = { svt: "Sparse Vector", adaptive: "Adaptive Sparse Vector", ladder: "Sparse Vector ladder" };

  function showMonitors() {
    if (!status) return;
    const sums = status.monitors.map((monitor) => {
      const seats = [...datasets.values()].flatMap((one) => one.monitors.filter((each) => each.monitor === monitor.monitor)
        .map((each) => ({ ...each, now: stateNow(one, each)[0] })));
      const states = {};
      for (const seat of seats) states[seat.now] = (states[seat.now] ?? 0) + 1;
      const sum = (field) => seats.reduce((total, seat) => total + seat[field], 0);
      return { monitor, states: ORDER.filter((state) => states[state]).map((state) => [state, states[state]]), alerts: sum("alerts"), halts: sum("halts") };
    });
    fill(at("monitors"), sums, () => sums.map(({ monitor, states, alerts, halts }) =>
      make("tr", { role: "row" },
        cell("Monitor", name(monitor.monitor), make("span", { class: "sub" }, MECHANISMS[monitor.mechanism] ?? monitor.mechanism)),
        cell("Alerts on", `values of ${number(monitor.threshold)} or more`, make("span", { class: "sub" },
          `${number(monitor.surely)} is missed by 5 tests in 100 · topic `, name(monitor.topic))),
        cell("A run", `${many(monitor.cutoff, "alert")} for epsilon ${loss(monitor.epsilon, "epsilon")}`,
          monitor.mechanism === "svt" ? null : make("span", { class: "sub" }, "more, if far above")),
        cell("On its datasets", ...states.map(([state, count]) => stateOf(state, `${number(count)} ${STATES[state] ?? state}`))),
        numeric("Alerts", number(alerts)), numeric("Halts", number(halts)))));
  }

  const SHARDS = {
    opening: ["waiting", "reading its state"], replaying: ["running", "catching up"], running: ["running", "running"],
    parked: ["stopped", "parked"], "not-member": ["waiting", "not a member: another worker owns it"],
    retrying: ["waiting", "trying again"], stopped: ["stopped", "stopped"],
  };

  function showWorker() {
    if (!status) return;
    set(at("application"), status.application);
    const shards = status.shards.length;
    set(at("worker-lead"), `${status.worker}, ${status.ready ? "ready" : "not ready"}. It owns ${shards ? many(shards, "shard") : "no shard"}`
      + ` of the application's topics; its stored state is ${status.sealed ? "sealed" : "not sealed: name a key under sealing.keys"}.`
      + (status.fault ? ` It stays out of its group: ${status.fault.reason}.` : "")
      + " Budgets and alerts above are those of the whole application.");
    fill(at("shards"), status.shards, () => status.shards.map((shard) => {
      const [state, does] = SHARDS[shard.state] ?? ["waiting", shard.state];
      const words = shard.state === "parked" ? `${does}: ${shard.cause}` : does;
      return make("tr", { role: "row" }, cell("Shard", `Shard ${shard.shard}`),
        cell("State", stateOf(state, words), shard.reason ? make("span", { class: "sub" }, shard.reason) : null),
        numeric("Queries waiting", number(total(shard.lag)), Object.keys(shard.ticks).length
          ? make("span", { class: "sub" }, "ticks to ", clock(Math.min(...Object.values(shard.ticks)) / 1000)) : null),
        cell("Last commit", shard.committed_at ? since(shard.committed_at) : "none yet"));
    }));
    const reasons = Object.entries(status.refused.reasons);
    const refused = total(status.refused.reasons);
    at("refused").hidden = refused === 0;
    fill(at("refused"), status.refused, () => [`It has refused ${many(refused, "record")} since it started (`
      + `${reasons.map(([reason, count]) => `${reason} ${number(count)}`).join(", ")}): see topic `, name(status.refused.topic), ".", status.refused.remedy ? ` Misrouted: ${status.refused.remedy}.` : ""]);
    at("shards-empty").hidden = shards > 0;
    at("shards").parentElement.hidden = shards === 0;
    set(at("version"), `stream_svt ${status.version}, specification ${status.application_hash}`);
  }

  async function ask(path) {
    const answer = await fetch(path, { cache: "no-store", signal: AbortSignal.timeout(POLL * 3) });
    if (!answer.ok) throw new Error(String(answer.status));
    return answer.json();
  }

  let polling = 0;
  let heard = 0;
  async function poll() {
    clearTimeout(polling);
    if (!document.hidden) {
      try {
        const [worker, overview] = await Promise.all([ask("api/v1/worker"), ask("api/v1/overview")]);
        status = worker;
        statusFailed = false;
        heard = Date.now();
        take(overview);
        showBlind();
        showWorker();
        showMonitors();
        showGlance();
      } catch {
        statusFailed = true;
      }
      showLink();
    }
    polling = setTimeout(poll, POLL);
  }

  function take(overview) {
    skew = overview.now - Date.now() / 1000;
    complete = overview.complete;
    declared = overview.datasets_declared;
    trouble = overview.trouble;
    set(at("application"), overview.application);
    const named = new Set(overview.datasets.map((one) => one.dataset));
    for (const each of [...datasets.keys()].filter((other) => !named.has(other))) {
      datasets.delete(each);
      rows.delete(each);
    }
    for (const one of overview.datasets) datasets.set(one.dataset, one);
    // While the history is being read again, what was read before stays.
    if (!overview.trouble || overview.events.length) events = overview.events;
    showEvents();
    arrangeBudgets();
  }

  function showLink() {
    const live = heard > 0 && !statusFailed && !trouble;
    const link = at("link");
    link.dataset.link = live ? (blind.length ? at("blind").dataset.tone : "live") : statusFailed ? "lost" : "waiting";
    set(link, live ? `Live${blind.length ? `, ${number(blind.length)} not watching` : ""}` : statusFailed ? "No answer" : trouble ? "Interrupted" : "Connecting …");
    const notice = at("notice");
    const asOf = heard ? ` What you see is as of ${new Date(heard).toLocaleTimeString("en-GB")}.` : "";
    const text = statusFailed ? `This worker does not answer.${asOf}`
      : trouble === "refused" ? "The worker may not read the alert topic: see its log."
        : trouble === "slow" ? "The worker is still reading the alert topic."
          : trouble ? "The alert topic cannot be reached at the moment." : "";
    notice.hidden = !text;
    set(notice, text);
  }

  // A page that nobody sees asks for nothing; seen again, it asks at once.
  document.addEventListener("visibilitychange", () => { if (!document.hidden) poll(); });

  // -- what the reader does ---------------------------------------------------------------------------------

  at("lifecycle").addEventListener("change", showEvents);
  at("filter").addEventListener("input", arrangeBudgets);
  setInterval(() => {
    for (const node of document.querySelectorAll("time[data-at]")) set(node, ago(Number(node.dataset.at)));
  }, 5000);

  at("lifecycle").checked = false;
  poll();
});

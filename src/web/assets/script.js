// Keeps pages current, and pages through logs. Pages are whole without it. It makes text only, never markup.
"use strict";
(() => {
  const $ = (id) => document.getElementById(id);

  // What a person is told when the server does not answer.
  const tell = (words, link) => {
    const box = $("connection");
    if (!words) { box.hidden = true; return; }
    box.replaceChildren(words);
    if (link) {
      const a = document.createElement("a");
      a.href = "/ui/login?next=" + encodeURIComponent(location.pathname + location.search);
      a.textContent = link;
      box.append(" ", a);
    }
    box.hidden = false;
  };

  // An answer of the server; none if there is no server or no session, which is told.
  const get = async (address, accept) => {
    let answer;
    try {
      answer = await fetch(address, { headers: { accept }, credentials: "same-origin", redirect: "manual" });
    } catch {
      tell("The server does not answer. What you see may be old; it is asked again.");
      return null;
    }
    if (answer.type === "opaqueredirect" || answer.status === 401) {
      tell("Your session has ended. What you see may be old.", "Sign in");
      return null;
    }
    if (!answer.ok) {
      tell("The server answers with status " + answer.status + ". What you see may be old; it is asked again.");
      return null;
    }
    tell("");
    return answer;
  };

  // Puts sections of the same page, fetched again, in place of those shown. A section that is in use stays.
  const renew = async (ids, address = location.pathname + location.search) => {
    const answer = await get(address, "text/html");
    if (!answer) return false;
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    for (const id of ids) {
      const old = $(id), fresh = page.getElementById(id);
      if (!old || !fresh || old.innerHTML === fresh.innerHTML) continue;
      const is_used = old.contains(document.activeElement) || old.querySelector("details[open]")
        || (getSelection().type === "Range" && old.contains(getSelection().anchorNode));
      if (!is_used) old.replaceWith(document.adoptNode(fresh));
    }
    if (page.title) document.title = page.title;
    return true;
  };

  const every = Number(document.body.dataset.every);
  if (every) {
    const ids = [...document.querySelectorAll("main > [id]")].map((section) => section.id);
    let asking = false;
    setInterval(async () => {
      if (asking || document.hidden) return;
      asking = true;
      await renew(ids);
      asking = false;
    }, every * 1000);
  }

  // The next runs of a line that is being typed.
  const schedule = $("new-schedule");
  if (schedule) {
    let timer, latest = 0;
    const preview = async () => {
      const mine = ++latest;
      const query = new URLSearchParams({ cron: $("schedule-cron").value, zone: $("schedule-zone").value });
      const answer = await get("/ui/schedules/preview?" + query, "application/json");
      if (!answer || mine !== latest) return;
      const { error, words, runs } = await answer.json();
      const box = $("preview");
      if (error) { box.textContent = error; return; }
      const list = document.createElement("ol");
      for (const run of runs) {
        const item = document.createElement("li");
        item.textContent = run;
        list.append(item);
      }
      box.replaceChildren(words, list);
    };
    schedule.addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(preview, 250); });
    preview();
  }

  // An archive that is dropped anywhere on the page of recipes is chosen in the form.
  const adding = $("add-recipe");
  if (adding) {
    const file = $("recipe-file"), help = $("drop-help"), usual = help.textContent;
    const holds = (event) => event.dataTransfer && [...event.dataTransfer.types].includes("Files");
    document.addEventListener("dragover", (event) => {
      if (!holds(event)) return;
      event.preventDefault();
      adding.open = true;
      adding.classList.add("over");
    });
    document.addEventListener("dragleave", (event) => { if (!event.relatedTarget) adding.classList.remove("over"); });
    document.addEventListener("drop", (event) => {
      if (!holds(event)) return;
      event.preventDefault();
      adding.classList.remove("over");
      if (event.dataTransfer.files.length !== 1) { help.textContent = "Drop one archive. A directory has to be packed first."; return; }
      file.files = event.dataTransfer.files;
      help.textContent = file.files[0].name + " is chosen. " + usual;
      $("recipe-name").focus();
    });
  }

  // The log of a job: a window of lines that moves as one scrolls.
  const box = $("log-box");
  if (!box) return;
  const list = $("lines"), news = $("log-news"), job = box.dataset.job, base = "/ui/jobs/" + job;
  const CHUNK = 500, MOST = 2000;
  let length = Number(box.dataset.length), busy = false, scrolled = false;
  let follows = box.dataset.tail === "yes";
  const numbers = () => {
    const rows = list.children;
    const of = (row) => row ? Number(row.id.slice(1)) : -1;
    return [of(rows[0]), of(rows[rows.length - 1])];
  };
  const row = ({ n, stream, step, time, text }) => {
    const item = document.createElement("li"), link = document.createElement("a"), span = document.createElement("span");
    item.id = "L" + n;
    item.className = stream;
    link.href = base + "?from=" + n + "#L" + n;
    link.title = time + "Z" + (step ? " · " + step : "");
    link.textContent = n;
    span.textContent = text;
    item.append(link, span);
    return item;
  };
  const say = (words) => {
    const [first, last] = numbers();
    news.textContent = length + " lines. " + (last >= 0 ? "Shown: " + first + " to " + last + ". " : "") + (words || "");
  };
  const lines = async (from, limit) => {
    const answer = await get(base + "/lines?from=" + from + "&limit=" + limit, "application/json");
    if (!answer) return null;
    const page = await answer.json();
    length = page.length;
    return page.lines;
  };
  const one_at_a_time = (work) => async (...given) => {
    if (busy) return false;
    busy = true;
    try {
      return await work(...given);
    } finally {
      busy = false;
      // A scroll of meanwhile was not answered, and at an end of the box there will be no other.
      if (scrolled) requestAnimationFrame(fill);
    }
  };
  const to_end = () => { box.scrollTop = box.scrollHeight; };
  const later = one_at_a_time(async () => {
    const [, last] = numbers();
    if (last + 1 >= length) return false;
    // At the end of a log that grows fast, the lines between are left out.
    const from = follows ? Math.max(last + 1, length - CHUNK) : last + 1;
    const more = await lines(from, CHUNK);
    if (!more || !more.length) return false;
    if (from > last + 1) list.replaceChildren();
    list.append(...more.map(row));
    const extra = list.children.length - MOST;
    if (extra > 0) {
      const before = box.scrollHeight;
      for (let i = 0; i < extra; i++) list.firstChild.remove();
      if (!follows) box.scrollTop -= before - box.scrollHeight;
    }
    if (follows) to_end();
    say();
    return true;
  });
  const earlier = one_at_a_time(async () => {
    const [first] = numbers();
    if (first <= 0) return;
    const from = Math.max(0, first - CHUNK), more = await lines(from, first - from);
    if (!more || !more.length) return;
    const before = box.scrollHeight;
    list.prepend(...more.map(row));
    box.scrollTop += box.scrollHeight - before;
    while (list.children.length > MOST) list.lastChild.remove();
    say();
  });
  const jump = one_at_a_time(async (line, words) => {
    const from = Math.max(0, Math.min(line, length - 1) - 20), some = await lines(from, CHUNK);
    if (!some) return;
    follows = false;
    list.replaceChildren(...some.map(row));
    const goal = $("L" + line);
    if (goal) {
      goal.classList.add("hit");
      goal.scrollIntoView({ block: "center" });
      history.replaceState(null, "", base + "?from=" + line + "#L" + line);
    }
    say(words);
  });
  // A mark that the reader can see, and where a search goes on.
  const marked = () => {
    const hit = list.querySelector(".hit");
    return hit ? Number(hit.id.slice(1)) : null;
  };
  const search = async (query, from) => {
    for (;;) {
      const address = base + "/find?" + new URLSearchParams({ ...query, from });
      const answer = await get(address, "application/json");
      if (!answer) return;
      const { line, next } = await answer.json();
      if (line !== null) { await jump(line, "Found in line " + line + "."); return; }
      if (next === null) { say("Nothing found from line " + from + " on."); return; }
      say("Nothing up to line " + next + "; still searching.");
      from = next;
    }
  };
  const fill = () => {
    const at_end = box.scrollTop + box.clientHeight >= box.scrollHeight - 40;
    const [, last] = numbers();
    follows = at_end && last + 1 >= length;
    scrolled = busy;
    if (busy) return;
    if (box.scrollTop < 200) earlier();
    else if (at_end) later();
  };
  box.addEventListener("scroll", fill);
  $("log-tools").addEventListener("submit", (event) => {
    event.preventDefault();
    if (event.submitter === $("go") || document.activeElement === $("line")) {
      if ($("line").value !== "") jump(Number($("line").value));
      return;
    }
    const find = $("find").value.trim(), at = marked();
    if (find) search({ find }, at === null ? Math.max(0, numbers()[0]) : at + 1);
  });
  $("first-error").addEventListener("click", (event) => { event.preventDefault(); search({ errors: true }, 0); });
  $("log-end").addEventListener("click", async (event) => {
    event.preventDefault();
    const some = await lines(Math.max(0, length - CHUNK), CHUNK);
    if (!some) return;
    list.replaceChildren(...some.map(row));
    follows = true;
    to_end();
    history.replaceState(null, "", base + "#log");
    say();
  });
  $("log-pages").hidden = true;
  if (follows) to_end();
  const goal = box.dataset.hit || (location.hash.startsWith("#L") ? location.hash.slice(2) : "");
  if (goal && $("L" + goal)) { $("L" + goal).classList.add("hit"); $("L" + goal).scrollIntoView({ block: "center" }); }

  if (box.dataset.over === "yes") return;
  const source = new EventSource(base + "/events");
  let revision = null;
  let was_away = false;
  source.addEventListener("open", () => {
    tell("");
    // Forms of a server that started anew have other tokens.
    if (was_away) renew(["state", "facts"], base + "?head=true");
    was_away = false;
  });
  source.addEventListener("error", () => {
    was_away = true;
    tell("The server does not answer. What you see may be old; it is asked again.");
    // Browsers give up for good after some answers: an expired session is told, all else is tried again.
    if (source.readyState === EventSource.CLOSED) {
      setTimeout(async () => { if (await get(base + "/lines?limit=1", "application/json")) location.reload(); }, 3000);
    }
  });
  source.addEventListener("news", async (event) => {
    const fresh = JSON.parse(event.data);
    if (fresh.over) source.close();
    length = fresh.length;
    let grows = follows;
    while (grows) grows = await later();
    say();
    if (revision !== fresh.revision) {
      revision = fresh.revision;
      await renew(["state", "facts"], base + "?head=true");
    }
  });
  setInterval(() => { if (source.readyState === EventSource.OPEN && !document.hidden) renew(["state"], base + "?head=true"); }, 10000);
})();

// Says what a number means: on hover over it or over its column's head, on focus of the head, and on touch.
"use strict";
(() => {
  const bubble = document.createElement("div");
  bubble.className = "meaning"; bubble.id = "meaning"; bubble.setAttribute("role", "tooltip"); bubble.hidden = true;
  document.body.append(bubble);
  let shown = null, leaving = 0, rested = "";

  // The text moves from `title` to the bubble: a browser's own tooltip appears neither on focus nor on touch.
  for (const term of document.querySelectorAll("abbr.term[title]")) {
    term.dataset.meaning = term.title;
    term.setAttribute("aria-description", term.title);
    term.removeAttribute("title");
    term.tabIndex = 0;
  }

  const termOf = (place) => {
    if (!(place instanceof Element)) return null;
    const own = place.closest("abbr.term");
    if (own) return own;
    const cell = place.closest("td.number");
    const head = cell && cell.closest("table").querySelector("thead tr");
    return head && head.cells[cell.cellIndex] ? head.cells[cell.cellIndex].querySelector("abbr.term") : null;
  };
  const hide = () => { bubble.hidden = true; shown = null; };
  const show = (place, term) => {
    clearTimeout(leaving);
    shown = place;
    bubble.replaceChildren(Object.assign(document.createElement("strong"), { textContent: term.textContent }),
      document.createTextNode(` ${term.dataset.meaning}`));
    bubble.hidden = false;
    const at = place.getBoundingClientRect(), own = bubble.getBoundingClientRect(), room = document.documentElement.clientWidth;
    bubble.style.left = `${Math.max(8, Math.min(at.left, room - own.width - 8))}px`;
    const below = at.bottom + 6;
    bubble.style.top = `${below + own.height < innerHeight || at.top < own.height + 6 ? below : at.top - own.height - 6}px`;
  };
  const over = (event) => {
    if (event.type === "pointerover") {
      // A pointer at rest is over something new whenever the bubble comes or goes: only one that moved means it.
      const at = `${event.clientX} ${event.clientY}`;
      if (at === rested) return;
      rested = at;
    }
    const term = termOf(event.target);
    if (term) show(event.target.closest("abbr.term, td.number"), term);
    else if (bubble.contains(event.target)) clearTimeout(leaving);
    else if (shown && event.type === "pointerover") { clearTimeout(leaving); leaving = setTimeout(hide, 200); }
    else if (shown) hide();
  };
  document.addEventListener("pointerover", over);
  document.addEventListener("click", over);
  document.addEventListener("focusin", over);
  document.addEventListener("focusout", hide);
  // What is hovered or focused may scroll into view at that moment: the bubble goes along until it is out of sight.
  document.addEventListener("scroll", () => {
    if (!shown) return;
    const at = shown.getBoundingClientRect();
    if (at.bottom > 0 && at.top < innerHeight) show(shown, termOf(shown)); else hide();
  }, true);
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });
})();

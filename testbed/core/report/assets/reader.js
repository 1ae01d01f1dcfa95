// Says of a table that it scrolls sideways, where it does; and unfolds for paper, which nobody can unfold, what is folded.
"use strict";
(() => {
  const tables = [...document.querySelectorAll(".scroll")];
  const told = () => tables.forEach((each) => {
    each.classList.toggle("overflows", each.scrollWidth > each.clientWidth + 1);
  });
  const sizes = new ResizeObserver(told);
  tables.forEach((each) => sizes.observe(each));
  told();

  let unfolded = [];
  addEventListener("beforeprint", () => {
    unfolded = [...document.querySelectorAll("details:not([open])")];
    unfolded.forEach((each) => { each.open = true; });
  });
  addEventListener("afterprint", () => {
    unfolded.forEach((each) => { each.open = false; });
    unfolded = [];
  });
})();

// Mark tables that scroll sideways; unfold folded parts before printing.
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

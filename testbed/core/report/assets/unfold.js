// A field of the matrix leads to a fault's detail, which is folded: unfold what the address names.
"use strict";
(() => {
  const unfold = () => {
    const place = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!place) return;
    for (let each = place; each; each = each.parentElement) if (each.tagName === "DETAILS") each.open = true;
    place.scrollIntoView();
  };
  addEventListener("hashchange", unfold);
  unfold();
})();

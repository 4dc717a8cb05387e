"use strict";

// Sorting and filtering of the verdict table. Without this script the table stands in the order of the claims.
const table = document.querySelector("table.verdicts");
const claims = [...table.tBodies];
const form = document.querySelector("form.controls");
const field = (name) => document.getElementById(name);
const heads = [...table.querySelectorAll("th[data-sort]")];
let order = "order", backwards = false;

// What the table is sorted and filtered by stands in its text.
const verdicts = [...field("by-verdict").options].map((option) => option.value);
claims.forEach((claim, i) => {
  const verdict = claim.querySelector(".verdict").textContent.slice(2);
  const [holds, of] = claim.rows[0].cells[5].textContent.split("/").map(parseFloat);
  Object.assign(claim.dataset, { order: i, verdict, rank: verdicts.indexOf(verdict), drawn: of ? holds / of : -1 });
});

function show() {
  const verdict = field("by-verdict").value, part = field("by-part").value;
  const words = field("by-text").value.toLowerCase().split(/\s+/);
  let shown = 0;
  for (const claim of claims) {
    const text = claim.textContent.toLowerCase();
    claim.hidden = (verdict && claim.dataset.verdict !== verdict) || (part && claim.dataset.part !== part)
      || !words.every((word) => text.includes(word));
    shown += !claim.hidden;
  }
  field("count").textContent = shown === claims.length ? `${shown} claims` : `${shown} of ${claims.length} claims`;
}

function sort(name, down) {
  order = name;
  backwards = down;
  const key = (claim) => Number(claim.dataset[order]);
  const sorted = [...claims].sort((a, b) => (backwards ? key(b) - key(a) : key(a) - key(b)) || a.dataset.order - b.dataset.order);
  table.append(...sorted);
  for (const head of heads) {
    if (head.dataset.sort === order) head.setAttribute("aria-sort", backwards ? "descending" : "ascending");
    else head.removeAttribute("aria-sort");
  }
  field("by-order").value = order;
}

for (const head of heads) {
  head.firstChild.addEventListener("click", () => sort(head.dataset.sort, order === head.dataset.sort && !backwards));
}
form.addEventListener("input", show);
form.addEventListener("submit", (event) => event.preventDefault());
field("by-order").addEventListener("change", (event) => sort(event.target.value, false));

// A link to something folded opens it; one to a claim that the filter hides shows all claims.
function reveal() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (!target) return;
  if (target.hidden) {
    form.reset();
    sort("order", false);
    show();
  }
  for (let box = target.closest("details"); box; box = box.parentElement.closest("details")) box.open = true;
  const own = target.matches("tbody.claim") && target.querySelector("details");
  if (own) own.open = true;
  target.scrollIntoView();
}
addEventListener("hashchange", reveal);
if (location.hash) reveal();

// Measures one page in a real browser and prints one line of JSON; scripts/check_page.py judges it.
// usage: node measure.mjs URL CHROMIUM FOLDER_FOR_SCREENSHOTS
import { createRequire } from "node:module";
import lighthouse from "lighthouse";
import puppeteer from "puppeteer-core";

const RUNS = 3; // of Lighthouse, whose scores vary from run to run
const TIMINGS = ["first-contentful-paint", "largest-contentful-paint", "total-blocking-time", "cumulative-layout-shift", "speed-index"];
const [url, executablePath, folder] = process.argv.slice(2);
const axe = createRequire(import.meta.url).resolve("axe-core/axe.min.js");

async function atWidth(browser, width) {
  const page = await browser.newPage();
  const errors = [];
  page.on("console", (message) => message.type() === "error" && errors.push(message.text()));
  page.on("pageerror", (error) => errors.push(String(error)));
  await page.setBypassCSP(true); // for axe alone, which is put into the page
  await page.setViewport({ width, height: width < 600 ? 844 : 800 });
  await page.goto(url);
  await page.screenshot({ path: `${folder}/first-${width}.png` });
  await page.screenshot({ path: `${folder}/whole-${width}.png`, fullPage: true });
  const screens = await page.evaluate(() => document.documentElement.scrollHeight / innerHeight);
  // From here on everything is open: what is folded counts, too.
  await page.evaluate(() => document.querySelectorAll("details").forEach((box) => (box.open = true)));
  const beyond = await page.evaluate(() => {
    const right = document.documentElement.clientWidth + 1;
    const boxes = [...document.querySelectorAll("main *")].filter((box) => box.getBoundingClientRect().right > right);
    return boxes.slice(0, 5).map((box) => `${box.tagName} ${box.textContent.slice(0, 60)}`);
  });
  const sideways = await page.evaluate(() => document.documentElement.scrollWidth > innerWidth);
  await page.addScriptTag({ path: axe });
  const found = await page.evaluate(() => window.axe.run(document, { resultTypes: ["violations"] }));
  const violations = found.violations.map(({ id, nodes }) => `${id}: ${nodes.length} x ${nodes[0].html.slice(0, 160)}`);
  await page.close();
  return { screens, sideways, beyond, violations, errors };
}

// What a reader does with the verdict table, by keyboard, and whether it is there without JavaScript.
async function table(browser) {
  const page = await browser.newPage();
  await page.setViewport({ width: 1280, height: 800 });
  await page.goto(url);
  const column = (name) => page.$$eval("tbody.claim", (rows, name) => rows.map((row) => Number(row.dataset[name])), name);
  await page.focus("th[data-sort=rank] button");
  await page.keyboard.press("Enter");
  const ranks = await column("rank");
  await page.select("#by-verdict", "open");
  const kept = await page.$$eval("tbody.claim:not([hidden])", (rows) => rows.map((row) => row.dataset.verdict));
  const last = await page.$eval("tbody.claim[hidden]", (row) => row.id);
  await page.evaluate((id) => (location.hash = `#${id}`), last);
  await new Promise((done) => setTimeout(done, 300));
  const revealed = await page.$eval(`#${last}`, (row) => !row.hidden && (row.querySelector("details")?.open ?? true));
  await page.setJavaScriptEnabled(false);
  await page.goto(url.split("#")[0]);
  const plain = await page.$$eval("tbody.claim", (rows) => rows.length);
  const form = await page.$eval("form.controls", (form) => getComputedStyle(form).display === "none");
  await page.close();
  return {
    sorts: ranks.length > 0 && ranks.every((rank, i) => i === 0 || ranks[i - 1] <= rank),
    filters: kept.every((verdict) => verdict === "open"),
    reveals: revealed,
    "works without JavaScript": plain === ranks.length && form,
  };
}

async function score(port) {
  const flags = { port, onlyCategories: ["performance", "accessibility"], logLevel: "error" };
  const { lhr } = await lighthouse(url, flags); // by default a mid-range phone on a slow connection
  const failed = lhr.categories.accessibility.auditRefs.filter(({ id, weight }) => weight && lhr.audits[id].score === 0);
  return {
    performance: Math.round(100 * lhr.categories.performance.score),
    accessibility: Math.round(100 * lhr.categories.accessibility.score),
    timings: Object.fromEntries(TIMINGS.map((name) => [name, lhr.audits[name].displayValue])),
    failed: failed.map(({ id }) => lhr.audits[id].title),
  };
}

const browser = await puppeteer.launch({ executablePath, args: ["--no-sandbox", "--disable-dev-shm-usage"] });
try {
  const widths = { 390: await atWidth(browser, 390), 1280: await atWidth(browser, 1280) };
  const runs = [];
  while (runs.length < RUNS) runs.push(await score(Number(new URL(browser.wsEndpoint()).port)));
  console.log(JSON.stringify({ widths, table: await table(browser), runs }));
} finally {
  await browser.close();
}

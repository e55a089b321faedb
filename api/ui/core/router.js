/** Addresses and their pages. */

/** @type {[RegExp, string][]} */
const ROUTES = [
  [/^\/ui\/?$/, "cluster"],
  [/^\/ui\/login$/, "login"],
  [/^\/ui\/gpus\/([^/]+)$/, "gpu"],
  [/^\/ui\/queues$/, "queues"],
  [/^\/ui\/trainings$/, "trainings"],
  [/^\/ui\/trainings\/([^/]+)$/, "training"],
  [/^\/ui\/plan$/, "plan"],
  [/^\/ui\/functions$/, "functions"],
  [/^\/ui\/functions\/([^/]+)$/, "function"],
  [/^\/ui\/harvest$/, "harvest"],
  [/^\/ui\/predictor$/, "predictor"],
  [/^\/ui\/prewarm$/, "prewarm"],
  [/^\/ui\/invocations$/, "invocations"],
  [/^\/ui\/invocations\/([^/]+)$/, "invocation"],
  [/^\/ui\/audit$/, "audit"],
];

/** The pages of the navigation: address, word, and what it takes to see it. @type {[string, string, string][]} */
export const PAGES = [
  ["/ui/", "Cluster", "read"],
  ["/ui/queues", "Queues", "read"],
  ["/ui/trainings", "Trainings", "read"],
  ["/ui/plan", "Plan", "read"],
  ["/ui/functions", "Functions", "read"],
  ["/ui/invocations", "Invocations", "read"],
  ["/ui/harvest", "Harvest", "read"],
  ["/ui/predictor", "Predictor", "read"],
  ["/ui/prewarm", "Prewarming", "read"],
  ["/ui/audit", "Audit", "admin"],
];

/** The page at an address: its module and its parameters; null = there is none. @param {string} pathname */
export function match(pathname) {
  for (const [pattern, page] of ROUTES) {
    const found = pattern.exec(pathname);
    if (found) return { page, params: found.slice(1).map(decodeURIComponent) };
  }
  return null;
}

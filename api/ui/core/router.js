/** Addresses and their pages. */

/** Addresses, where `*` stands for a name; the page's module; of those in the navigation the word, and the scope that sees them. */
const ROUTES = [
  ["/ui/", "cluster", "Cluster", "read"],
  ["/ui/login", "login"],
  ["/ui/gpus/*", "gpu"],
  ["/ui/queues", "queues", "Queues", "read"],
  ["/ui/trainings", "trainings", "Trainings", "read"],
  ["/ui/trainings/*", "training"],
  ["/ui/plan", "plan", "Plan", "read"],
  ["/ui/functions", "functions", "Functions", "read"],
  ["/ui/functions/*", "function"],
  ["/ui/invocations", "invocations", "Invocations", "read"],
  ["/ui/invocations/*", "invocation"],
  ["/ui/harvest", "harvest", "Harvest", "read"],
  ["/ui/predictor", "predictor", "Predictor", "read"],
  ["/ui/prewarm", "prewarm", "Prewarming", "read"],
  ["/ui/audit", "audit", "Audit", "admin"],
];

/** The pages of the navigation that somebody with these scopes may see. @param {string[]} scopes */
export const navigation = (scopes) => ROUTES.filter(([, , word, scope]) => word && scopes.includes(scope)).map(([href, , word]) => ({ href, word }));

/** The page at an address: its module and its parameters; null = there is none. @param {string} pathname */
export function match(pathname) {
  const [, name] = /^\/ui\/\w+\/([^/]+)$/.exec(pathname) ?? [];
  const address = name ? pathname.slice(0, -name.length) + "*" : pathname === "/ui" ? "/ui/" : pathname;
  const page = ROUTES.find(([each]) => each === address)?.[1];
  return page ? { page, params: name ? [decodeURIComponent(name)] : [] } : null;
}

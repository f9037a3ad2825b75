// Receives siwad's webhooks: verifies each, and acts on it once. Environment: SECRET, PORT.
const [{ createHmac, timingSafeEqual }, { buffer }] = [require("node:crypto"), require("node:stream/consumers")];
const key = Buffer.from((process.env.SECRET ?? "").slice(6), "base64");
if (key.length < 24 || process.env.SECRET !== "whsec_" + key.toString("base64")) throw new Error("SECRET must be whsec_…");
// For brevity in memory: use tables of your own, and write to them in the transaction that acts.
const [handled, latest] = [new Set(), new Map()];

function isGenuine({ "webhook-id": id, "webhook-timestamp": timestamp, "webhook-signature": signatures = "" }, body) {
  const expected = Buffer.from("v1," + createHmac("sha256", key).update(`${id}.${timestamp}.`).update(body).digest("base64"));
  return Math.abs(Date.now() / 1000 - Number(timestamp)) <= 300 && signatures.split(" ").map((text) => Buffer.from(text))
    .some((given) => given.length === expected.length && timingSafeEqual(given, expected));
}

function act({ type, data }) {
  if (data.sessions || data.session_id) // In any order, because what ended never comes back.
    console.log(`${data.sub}: end ${data.session_id ?? data.sessions.created_until ?? "all"}`);
  const facet = [data.team_id, data.sub, type.split(".")[1], data.scope === "app" && data.app_id].join();
  if (!(data.position > (latest.get(facet) ?? 0))) return;
  latest.set(facet, data.position);
  console.log(`${data.sub}: ${type}`); // The person's state, unless a later change has set it.
}

require("node:http").createServer(async (request, response) => {
  try {
    const [id, body] = [request.headers["webhook-id"], await buffer(request)];
    if (!isGenuine(request.headers, body)) return response.writeHead(400).end();
    if (!handled.has(id)) act(JSON.parse(body));
    handled.add(id);
    response.writeHead(204).end();
  } catch (error) { // The client has gone, or acting failed: then siwad sends the event again.
    response.writeHead(500).end(() => console.error(error));
  }
}).listen(process.env.PORT, "127.0.0.1");

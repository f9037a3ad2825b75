// Receives siwad's webhooks: verifies each, and acts on it once. Environment: SECRET, PORT.
const { createHmac, timingSafeEqual } = require("node:crypto");
const { buffer } = require("node:stream/consumers");

const key = Buffer.from(process.env.SECRET.replace("whsec_", ""), "base64");
// For brevity in memory: use tables of your own, and write to them in the transaction that acts.
const [handled, applied] = [new Set(), new Map()];

function isGenuine(id, timestamp, signatures, body) {
  if (!(Math.abs(Date.now() / 1000 - Number(timestamp)) <= 300)) return false;
  const expected = createHmac("sha256", key).update(`${id}.${timestamp}.`).update(body).digest();
  return signatures.split(" ").map((one) => one.split(",")).some(([version, value = ""]) => {
    const given = Buffer.from(value, "base64");
    return version === "v1" && given.length === expected.length && timingSafeEqual(given, expected);
  });
}

require("node:http").createServer(async (request, response) => {
  const { "webhook-id": id, "webhook-timestamp": timestamp, "webhook-signature": signatures = "" } = request.headers;
  const body = await buffer(request);
  if (!isGenuine(id, timestamp, signatures, body)) return response.writeHead(400).end();
  const { type, data } = JSON.parse(body);
  const subject = [data.team_id, data.sub, type.split(".")[1], data.scope === "app" && data.app_id, data.session_id].join();
  if (!handled.has(id) && data.position > (applied.get(subject) ?? 0)) {
    console.log(`${data.sub}: ${type}`); // Act here.
    applied.set(subject, data.position);
  }
  handled.add(id);
  response.writeHead(204).end();
}).listen(process.env.PORT, "127.0.0.1");

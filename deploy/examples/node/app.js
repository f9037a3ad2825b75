// A web application that signs people in with Apple and keeps its sessions in siwad.
//
// POST /sign-in takes the claims of an identity token that you have verified, GET / checks the session of a request, and
// GET /newsletter lists the addresses to write to. Needs the package pg. Environment: DATABASE_URL, CLIENT_ID, PORT.
const { createHash, randomBytes } = require("node:crypto");
const http = require("node:http");
const { json } = require("node:stream/consumers");
const { Pool } = require("pg");

const pool = new Pool({ connectionString: process.env.DATABASE_URL });
// Without these listeners, a connection that PostgreSQL closes ends the process: one in use, or one that waits in the pool.
pool.on("connect", (connection) => connection.on("error", (error) => console.error(error.message)));
pool.on("error", () => {});
const client = process.env.CLIENT_ID;
// The database has a digest, so that a reader of it can't use a session.
const sessionID = (token) => createHash("sha256").update(token).digest("hex");

async function signIn(request, response) {
  const { sub, email = null, is_private_email: isPrivate = null, iat } = await json(request);
  const token = randomBytes(32).toString("base64url");
  const connection = await pool.connect();
  try { // One transaction, before or after a deletion.
    await connection.query("BEGIN");
    await connection.query("SELECT siwa.record_sign_in($1, $2, $3, $4, to_timestamp($5))", [client, sub, email, isPrivate, iat]);
    const { rows } = await connection.query(
      "SELECT siwa.open_session($1, $2, $3, to_timestamp($4), now() + interval '30 days') AS live",
      [client, sub, sessionID(token), iat]);
    if (rows[0].live) {
      await connection.query(`INSERT INTO shop.subscribers AS s VALUES ($1, $2)
        ON CONFLICT (sub) DO UPDATE SET email = coalesce(excluded.email, s.email)`, [sub, email]);
    }
    await connection.query("COMMIT");
    connection.release();
    // The consent was revoked after Apple issued the token.
    if (!rows[0].live) return response.writeHead(401).end("Sign in again.");
  } catch (error) {
    connection.release(error); // closes the connection, which rolls the transaction back
    if (error.code !== "SW002") throw error;
    return response.writeHead(403).end("This Apple Account was deleted.");
  }
  response.writeHead(200, { "Set-Cookie": `session=${token}; Max-Age=2592000; Secure; HttpOnly; SameSite=Lax` }).end("Signed in.");
}

async function account(request, response) {
  const token = (request.headers.cookie ?? "").replace("session=", "");
  const { rows } = await pool.query("SELECT siwa.session_is_live($1) AS live", [sessionID(token)]);
  response.writeHead(rows[0].live ? 200 : 401).end(rows[0].live ? "Welcome." : "Sign in first.");
}

async function newsletter(request, response) {
  const { rows } = await pool.query(`
    SELECT email FROM shop.subscribers AS s
    WHERE email IS NOT NULL AND NOT EXISTS (SELECT FROM siwa.undeliverable_addresses AS u WHERE u.email = s.email) ORDER BY email`);
  response.end(rows.map((row) => row.email).join("\n"));
}

// Acts on each change once: the position is stored in the transaction that acts.
async function followChanges() {
  let connection;
  try {
    connection = await pool.connect();
    await connection.query("BEGIN");
    let [{ position }] = (await connection.query("SELECT position FROM shop.feed FOR UPDATE")).rows;
    const { rows } = await connection.query(
      "SELECT position, sub, type FROM siwa.changes WHERE position > $1 ORDER BY position LIMIT 100", [position]);
    for (const change of rows) {
      console.log(`${change.sub}: ${change.type}`);
      if (change.type === "siwa.account.deleted") {
        await connection.query("DELETE FROM shop.subscribers WHERE sub = $1", [change.sub]);
      }
      ({ position } = change);
    }
    await connection.query("UPDATE shop.feed SET position = $1", [position]);
    await connection.query("COMMIT");
    connection.release();
  } catch (error) {
    connection?.release(error); // closes the connection, which rolls the transaction back
    console.error(error.message);
  }
  setTimeout(followChanges, 1000);
}

const routes = { "POST /sign-in": signIn, "GET /": account, "GET /newsletter": newsletter };
http.createServer((request, response) => {
  const route = routes[`${request.method} ${request.url}`] ?? (async () => response.writeHead(404).end());
  route(request, response).catch(() => response.writeHead(500).end());
}).listen(process.env.PORT, "127.0.0.1");
followChanges();

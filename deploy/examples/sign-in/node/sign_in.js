// Signs a person in with what an app got from Apple. Environment: APPLICATION_SOCKET, CLIENT_ID; APPLICATION_TOKEN if tokens are configured.
//
// sign_in.js nonce              makes a nonce for an attempt; the app passes its sha256 to Apple
// sign_in.js NONCE <app.json    app.json: identityToken, authorizationCode, and user if Apple gave the name
const { createHash, randomBytes } = require('crypto')
const http = require('http')
const { json } = require('stream/consumers')
const { setTimeout } = require('timers/promises')

const send = (path, body) => new Promise((resolve, reject) => {
  const headers = { 'Content-Type': 'application/json', Authorization: `Bearer ${process.env.APPLICATION_TOKEN ?? ''}` }
  const signal = AbortSignal.timeout(12000)
  http.request({ socketPath: process.env.APPLICATION_SOCKET, path, method: 'POST', headers, signal }, (response) => {
    json(response).then((answer) => resolve([response, answer]), reject)
  }).on('error', reject).end(JSON.stringify({ client_id: process.env.CLIENT_ID, ...body }))
})

// Sends the same again if the answer was lost: siwad repeats it. No attempt begins after 15 seconds.
async function post (path, body) {
  const end = Date.now() + 15000
  while (true) {
    let problem
    let pause = 1000
    try {
      const [response, answer] = await send(path, body)
      if (response.statusCode === 200) return answer
      problem = `${answer.action}: ${answer.detail}`
      pause = answer.action === 'retry' ? (response.headers['retry-after'] ?? 1) * 1000 : Infinity
    } catch (error) {
      problem = error
    }
    if (Date.now() + pause > end) throw problem
    await setTimeout(pause)
  }
}

async function main () {
  if (process.argv[2] === 'nonce') return post('/v1/nonces', {})
  const app = JSON.parse(require('fs').readFileSync(0, 'utf8'))
  const token = randomBytes(32).toString('base64url') // The app keeps it; siwad only gets a digest.
  const answer = await post('/v1/sign-in', {
    identity_token: app.identityToken, authorization_code: app.authorizationCode, user: app.user, nonce: process.argv[2],
    session: { id: createHash('sha256').update(token).digest('hex'), expires_in: 30 * 86400 },
  })
  return { token, account: answer.account.id, name: answer.name }
}

main().then((result) => console.log(JSON.stringify(result)), (error) => { console.error(error); process.exitCode = 1 })

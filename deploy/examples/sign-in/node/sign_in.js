// Signs a person in with what an app got from Apple. Environment: APPLICATION_SOCKET, CLIENT_ID; APPLICATION_TOKEN if tokens are configured.
//
// sign_in.js nonce              makes a nonce for an attempt; the app passes its sha256 to Apple
// sign_in.js NONCE <app.json    app.json: identityToken, authorizationCode, and user if Apple gave the name
const { createHash, randomBytes } = require('crypto')
const http = require('http')

const post = (path, body) => new Promise((resolve, reject) => {
  const headers = { 'Content-Type': 'application/json', Authorization: `Bearer ${process.env.APPLICATION_TOKEN ?? ''}` }
  const options = { socketPath: process.env.APPLICATION_SOCKET, path, method: 'POST', headers, timeout: 12000 }
  const request = http.request(options, async (response) => {
    let text = ''
    for await (const part of response) text += part
    const answer = JSON.parse(text)
    if (response.statusCode === 200) resolve(answer)
    else reject(`${answer.action}: ${answer.detail}`)
  })
  request.on('error', reject).on('timeout', () => request.destroy(new Error('siwad does not answer')))
  request.end(JSON.stringify({ client_id: process.env.CLIENT_ID, ...body }))
})

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

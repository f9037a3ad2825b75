<?php // Signs a person in with what an app got from Apple. Needs PHP 8.2 and curl. Environment: APPLICATION_SOCKET, CLIENT_ID;
// APPLICATION_TOKEN if tokens are configured.
//
// sign_in.php nonce              makes a nonce for an attempt; the app passes its sha256 to Apple
// sign_in.php NONCE <app.json    app.json: identityToken, authorizationCode, and user if Apple gave the name
function stop(string $reason): never
{
    fwrite(STDERR, "$reason\n");
    exit(1);
}

// Sends the same again if the answer was lost: siwad repeats it. No attempt begins after 15 seconds.
function post(string $path, array $body): array
{
    $request = curl_init("http://siwad$path");
    curl_setopt_array($request, [
        CURLOPT_UNIX_SOCKET_PATH => getenv('APPLICATION_SOCKET'),
        CURLOPT_HTTPHEADER => ['Content-Type: application/json', 'Authorization: Bearer ' . getenv('APPLICATION_TOKEN')],
        CURLOPT_POSTFIELDS => json_encode(['client_id' => getenv('CLIENT_ID')] + $body),
        CURLOPT_RETURNTRANSFER => true,
        CURLOPT_TIMEOUT => 12,
    ]);
    for ($end = time() + 15;; sleep($pause)) {
        $answer = json_decode((string) curl_exec($request), true); // null if it is cut off or missing
        if ($answer && curl_getinfo($request, CURLINFO_RESPONSE_CODE) === 200) return $answer;
        $pause = curl_getinfo($request, CURLINFO_RETRY_AFTER) ?: 1;
        $problem = $answer ? "{$answer['action']}: {$answer['detail']}" : 'no answer: ' . curl_error($request);
        if (($answer['action'] ?? 'retry') !== 'retry' || time() + $pause > $end) stop($problem);
    }
}

if ($argv[1] === 'nonce') exit(json_encode(post('/v1/nonces', [])) . "\n");
$app = json_decode(file_get_contents('php://stdin'), true);
$token = bin2hex(random_bytes(32)); // The app keeps it; siwad only gets a digest.
$answer = post('/v1/sign-in', [
    'identity_token' => $app['identityToken'], 'authorization_code' => $app['authorizationCode'],
    'user' => ($app['user'] ?? null) ?: null, 'nonce' => $argv[1], // PHP reads {} as [].
    'session' => ['id' => hash('sha256', $token), 'expires_in' => 30 * 86400],
]);
echo json_encode(['token' => $token, 'account' => $answer['account']['id'], 'name' => $answer['name']]), "\n";
